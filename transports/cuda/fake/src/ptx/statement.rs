//! One statement: a variable that is declared, or an instruction.

use std::fmt::Write;

use super::operand::{Operand, address, name, operands, value};

/// An instruction or a declaration, without its semicolon.
pub(super) struct Statement<'a> {
    /// The predicate that it hangs on, as C++ has it.
    guard: Option<String>,
    /// The instruction's words: its name first, then what says how it is meant.
    words: Vec<&'a str>,
    operands: Vec<&'a str>,
    text: &'a str,
}

impl<'a> Statement<'a> {
    pub(super) fn of(text: &'a str) -> Result<Self, String> {
        let text = text.trim();
        let (guard, rest) = match text.strip_prefix('@') {
            Some(guarded) => {
                let (guard, rest) = guarded.split_once(char::is_whitespace).ok_or(text)?;
                (Some(value(guard)?), rest.trim_start())
            }
            None => (None, text),
        };
        let (name, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let words = name.split('.').collect();
        Ok(Self { guard, words, operands: operands(rest), text })
    }

    /// It as a line of C++. `shared`: bytes of shared memory that have a name already.
    pub(super) fn line(&self, shared: &mut usize) -> Result<String, String> {
        // A directive begins with a point.
        if self.words[0].is_empty() {
            return self.variable(shared);
        }
        let told = |problem| format!("{problem}, in: {}", self.text);
        let line = self.instruction().map_err(told)?;
        Ok(match &self.guard {
            Some(guard) => format!("if ({guard}) {{ {line} }}\n"),
            None => format!("{line}\n"),
        })
    }

    /// A declaration as C++ has it; nothing of what only helps a driver's compiler.
    pub(super) fn variable(&self, shared: &mut usize) -> Result<String, String> {
        match self.words.get(1).copied() {
            Some("pragma" | "loc") => Ok(String::new()),
            Some("reg") => self.registers(),
            // As long as the launch says.
            Some("extern") => {
                let (name, _) = parameter(self.text)?;
                Ok(format!("#define {name} ((b64)shared_room + 2 * SHARED_BYTES)\n"))
            }
            Some("shared") => {
                let (name, bytes) = parameter(self.text)?;
                let at = shared.next_multiple_of(self.alignment()?);
                *shared = at + bytes;
                Ok(format!("#define {name} ((b64)shared_room + {at})\n"))
            }
            _ => Err(format!("not understood: {}", self.text)),
        }
    }

    /// Of a variable: `.align 16`, which all of them say here.
    fn alignment(&self) -> Result<usize, String> {
        let number = self.text.split_whitespace().skip_while(|word| *word != ".align").nth(1);
        let number = number.and_then(|number| number.parse().ok()).filter(|number| *number > 0);
        number.ok_or_else(|| format!("no alignment: {}", self.text))
    }

    /// `.reg .b32 %r<4>` are %r0 to %r3, and `.reg .b32 tmp` is one.
    fn registers(&self) -> Result<String, String> {
        let mut words = self.text.split_whitespace().skip(1);
        let (Some(kind), Some(names), None) = (words.next(), words.next(), words.next()) else {
            return Err(format!("not understood: {}", self.text));
        };
        let kind = kind.trim_start_matches('.');
        let mut line = format!("{kind} ");
        match names.trim_end_matches('>').split_once('<') {
            None => line.push_str(&name(names)),
            Some((stem, count)) => {
                let count: u32 = count.parse().map_err(|_| format!("no number: {names}"))?;
                let all: Vec<String> = (0..count).map(|at| format!("{}{at}", name(stem))).collect();
                line.push_str(&all.join(", "));
            }
        }
        Ok(line + ";\n")
    }

    fn instruction(&self) -> Result<String, String> {
        match self.words[0] {
            "bra" => Ok(format!("goto {};", label(self.only()?))),
            "ret" | "exit" => Ok(String::from("return;")),
            "nanosleep" => Ok(String::from("brigade_cpu::stall();")),
            "ld" => self.load(),
            "st" => self.store(),
            "atom" => self.atomic(),
            "mov" => self.move_(),
            "shfl" => self.shuffle(),
            "bar" => self.barrier(),
            "membar" | "fence" => Ok(String::from("fence();")),
            // All memory has one kind of address here, of which shared memory's may be cut.
            "cvta" if self.is_shared() => {
                Ok(format!("{} = of_shared({});", self.at(0)?, self.at(1)?))
            }
            "cvta" => Ok(format!("{} = {};", self.at(0)?, self.at(1)?)),
            _ => {
                let rest = self.operands.iter().skip(1).map(|one| value(one));
                let rest = rest.collect::<Result<Vec<_>, _>>()?;
                Ok(format!("{} = {}({});", self.at(0)?, self.words.join("_"), rest.join(", ")))
            }
        }
    }

    fn load(&self) -> Result<String, String> {
        let [target, from] = self.two()?;
        let how = match self.order() {
            Some(order @ ("acquire" | "relaxed")) => format!("load_{order}"),
            Some("volatile") => String::from("load_relaxed"),
            _ => String::from("load"),
        };
        let kind = self.kind();
        self.moved(from, target, |target, at| format!("{target} = {how}<{kind}>({at});"))
    }

    fn store(&self) -> Result<String, String> {
        let [to, source] = self.two()?;
        let how = match self.order() {
            Some(order @ ("release" | "relaxed")) => format!("store_{order}"),
            Some("volatile") => String::from("store_relaxed"),
            _ => String::from("store"),
        };
        let kind = self.kind();
        self.moved(to, source, |source, at| format!("{how}<{kind}>({at}, ({kind}){source});"))
    }

    /// One element or the few of a vector, each at its place.
    fn moved(
        &self,
        place: &str,
        elements: &str,
        one: impl Fn(&str, &str) -> String,
    ) -> Result<String, String> {
        let elements = match Operand::of(elements) {
            Operand::Vector(elements) => elements,
            Operand::One(element) => vec![element],
        };
        let bytes = width(self.kind())?;
        let all = bytes * elements.len();
        // A vector may be loaded into the register of its own address.
        let mut line = format!("{{ const b64 at = aligned({}, {all});", self.place(place)?);
        for (at, element) in elements.iter().enumerate() {
            let place = format!("at + {}", at * bytes);
            let _ = write!(line, " {}", one(&value(element)?, &place));
        }
        Ok(line + " }")
    }

    fn atomic(&self) -> Result<String, String> {
        let (kind, [target, place, by]) = (self.kind(), self.three()?);
        if !self.words.contains(&"add") || kind.starts_with('f') {
            return Err(String::from("no such atomic"));
        }
        let bytes = width(kind)?;
        let at = format!("aligned({}, {bytes})", self.place(place)?);
        Ok(format!("{} = atom_add<{kind}>({at}, {});", value(target)?, value(by)?))
    }

    fn move_(&self) -> Result<String, String> {
        let [target, source] = self.two()?;
        let (target, source) = (Operand::of(target), Operand::of(source));
        if let (Operand::One(target), Operand::One(source)) = (&target, &source) {
            return Ok(format!("{} = {};", value(target)?, value(source)?));
        }
        let bits = 8 * width(self.kind())?;
        match (target, source) {
            (Operand::One(target), Operand::Vector(halves)) if halves.len() == 2 => {
                let [low, high] = [value(halves[0])?, value(halves[1])?];
                Ok(format!("{} = pack_{bits}({low}, {high});", value(target)?))
            }
            (Operand::Vector(halves), Operand::One(source)) if halves.len() == 2 => {
                let ([low, high], half) = ([value(halves[0])?, value(halves[1])?], bits / 2);
                let whole = format!("const b{bits} whole = {};", value(source)?);
                Ok(format!("{{ {whole} {low} = (b{half})whole; {high} = whole >> {half}; }}"))
            }
            _ => Err(String::from("no such move")),
        }
    }

    /// `shfl.sync.bfly.b32 %r2|%p1, ..`: the predicate says whether there is such a lane.
    fn shuffle(&self) -> Result<String, String> {
        let target = self.operands.first().ok_or("too few operands")?;
        let (target, is_there) = match target.split_once('|') {
            Some((target, is_there)) => (target, format!("&{}", value(is_there)?)),
            None => (*target, String::from("nullptr")),
        };
        let rest = self.operands.iter().skip(1).map(|one| value(one));
        let rest = rest.collect::<Result<Vec<_>, _>>()?.join(", ");
        Ok(format!("{} = {}({rest}, {is_there});", value(target)?, self.words.join("_")))
    }

    fn barrier(&self) -> Result<String, String> {
        match self.words.as_slice() {
            ["bar", "sync"] if self.only()? == "0" => Ok(String::from("brigade_cpu::barrier();")),
            ["bar", "warp", "sync"] => {
                Ok(format!("brigade_cpu::warp_barrier({});", value(self.only()?)?))
            }
            ["bar", "red", "or", "pred"] => {
                let [target, number, vote] = self.three()?;
                if number != "0" {
                    return Err(String::from("a barrier other than the first"));
                }
                let (target, vote) = (value(target)?, value(vote)?);
                Ok(format!("{target} = brigade_cpu::count({vote}) != 0;"))
            }
            _ => Err(String::from("no such barrier")),
        }
    }

    fn is_shared(&self) -> bool {
        self.words.contains(&"shared")
    }

    /// The address in brackets.
    fn place(&self, text: &str) -> Result<String, String> {
        let place = address(text)?;
        Ok(if self.is_shared() { format!("of_shared({place})") } else { place })
    }

    /// How a load or store is ordered, if it says so.
    fn order(&self) -> Option<&'a str> {
        let orders = ["acquire", "release", "relaxed", "volatile"];
        self.words.iter().copied().find(|word| orders.contains(word))
    }

    /// The last word of an instruction: the type of what it works on.
    fn kind(&self) -> &'a str {
        self.words.last().copied().unwrap_or_default()
    }

    fn at(&self, place: usize) -> Result<String, String> {
        value(self.operands.get(place).ok_or("too few operands")?)
    }

    fn only(&self) -> Result<&'a str, String> {
        <[&str; 1]>::try_from(self.operands.as_slice()).map(|[one]| one).map_err(count)
    }

    fn two(&self) -> Result<[&'a str; 2], String> {
        self.operands.as_slice().try_into().map_err(count)
    }

    fn three(&self) -> Result<[&'a str; 3], String> {
        self.operands.as_slice().try_into().map_err(count)
    }
}

fn count(_: std::array::TryFromSliceError) -> String {
    String::from("another number of operands")
}

/// Where code may go on, as C++ has it.
pub(super) fn label(text: &str) -> String {
    name(text)
}

/// The name of a parameter or of shared memory, and its bytes: `.param .align 8 .b8 call[1080]`.
pub(super) fn parameter(text: &str) -> Result<(String, usize), String> {
    let unknown = || format!("not understood: {text}");
    let words: Vec<&str> = text.split_whitespace().collect();
    let kind =
        words.iter().filter_map(|word| word.strip_prefix('.')).find_map(|kind| width(kind).ok());
    let (named, bytes) = (words.last().ok_or_else(unknown)?, kind.ok_or_else(unknown)?);
    let count = match named.trim_end_matches(']').split_once('[') {
        Some((_, "")) => 0,
        Some((_, count)) => count.parse().map_err(|_| unknown())?,
        None => 1,
    };
    Ok((name(named.split('[').next().unwrap_or_default()), bytes * count))
}

/// Bytes of a type.
fn width(kind: &str) -> Result<usize, String> {
    match kind.trim_start_matches(['b', 'u', 's', 'f']) {
        "8" => Ok(1),
        "16" => Ok(2),
        "32" => Ok(4),
        "64" => Ok(8),
        _ => Err(format!("no type: {kind}")),
    }
}
