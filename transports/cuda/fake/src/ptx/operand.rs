//! What instructions work on, as C++ has it.

/// An operand: one, or several in braces.
pub(super) enum Operand<'a> {
    One(&'a str),
    Vector(Vec<&'a str>),
}

impl<'a> Operand<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        match text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
            Some(inside) => Self::Vector(inside.split(',').map(str::trim).collect()),
            None => Self::One(text),
        }
    }
}

/// Operands between commas, of which those in braces separate no operands.
pub(super) fn operands(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let apart = |letter: char| {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        letter == ',' && depth == 0
    };
    text.split(apart).map(str::trim).filter(|operand| !operand.is_empty()).collect()
}

/// A register, a number or a place in memory, by its bits.
pub(super) fn value(text: &str) -> Result<String, String> {
    if let Some(negated) = text.strip_prefix('!') {
        return Ok(format!("!{}", value(negated)?));
    }
    if let Some(register) = text.strip_prefix('%')
        && let Some(special) = special(register)
    {
        return Ok(special.to_owned());
    }
    // Floats are written by their bits.
    if let Some(bits) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0d")) {
        return Ok(format!("0x{bits}ull"));
    }
    if text.starts_with(|letter: char| letter == '-' || letter.is_ascii_digit()) {
        let is_large = !text.starts_with('-') && text.len() > 18;
        return Ok(format!("{text}{}", if is_large { "ull" } else { "ll" }));
    }
    Ok(name(text))
}

/// The address in brackets: `[%rd1+8]`.
pub(super) fn address(text: &str) -> Result<String, String> {
    let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let inside = inside.ok_or_else(|| format!("no address: {text}"))?;
    match inside.split_once('+') {
        Some((base, offset)) => Ok(format!("{} + {offset}ll", value(base)?)),
        None => value(inside),
    }
}

/// A name as C++ takes it: none that a type, a function or a macro has here.
pub(super) fn name(text: &str) -> String {
    let kind = match text.as_bytes() {
        [b'%', ..] => "r_",
        [b'$', ..] => "l_",
        _ => "m_",
    };
    format!("{kind}{}", text.trim_start_matches(['%', '$']).replace(['$', '.'], "_"))
}

fn special(register: &str) -> Option<&'static str> {
    Some(match register {
        "tid.x" => "threadIdx.x",
        "tid.y" => "threadIdx.y",
        "tid.z" => "threadIdx.z",
        "ntid.x" => "blockDim.x",
        "ntid.y" => "blockDim.y",
        "ntid.z" => "blockDim.z",
        "ctaid.x" => "blockIdx.x",
        "ctaid.y" => "blockIdx.y",
        "ctaid.z" => "blockIdx.z",
        "nctaid.x" => "gridDim.x",
        "nctaid.y" => "gridDim.y",
        "nctaid.z" => "gridDim.z",
        "laneid" => "brigade_cpu::fiber().lane",
        "globaltimer" => "brigade_cpu::now_ns()",
        _ => return None,
    })
}
