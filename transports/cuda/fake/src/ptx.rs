//! Portable code of a device (PTX), as NVRTC makes it, in C++ for a processor: so tests run what a
//! device would, but for what its driver makes of that. Every instruction becomes one line, and
//! what it does stands in `cpu_ptx.h` under its name.

use std::fmt::Write;

mod operand;
mod statement;
mod text;

use statement::Statement;
use text::Text;

/// How it is done, so that caches tell what was done otherwise.
pub(crate) const SOURCES: [&str; 4] = [
    include_str!("ptx.rs"),
    include_str!("ptx/text.rs"),
    include_str!("ptx/statement.rs"),
    include_str!("ptx/operand.rs"),
];

/// The most shared memory that a kernel may declare; `cpu_ptx.h` has it too.
const SHARED_BYTES: usize = 48 * 1024;

/// The C++ source of a module, behind `cpu.h`; or what of the module is not understood.
pub(crate) fn translate(module: &str) -> Result<String, String> {
    let mut source = String::from("#include \"cpu.h\"\n#include \"cpu_ptx.h\"\n");
    let mut text = Text::of(module);
    // What several kernels use stands by itself, and takes nothing from those that do not.
    let mut shared = SHARED_BYTES;
    while let Some(word) = text.peek_word() {
        match word {
            ".version" | ".target" | ".address_size" => text.skip_line(),
            ".visible" => text.skip_word(),
            ".entry" => source.push_str(&kernel(&mut text)?),
            _ => source.push_str(&Statement::of(text.until(';')?)?.variable(&mut shared)?),
        }
    }
    if shared > 2 * SHARED_BYTES {
        return Err(String::from("kernels have too much shared memory together"));
    }
    Ok(source)
}

/// A kernel, and what `kernel.rs` finds by its name.
fn kernel(text: &mut Text<'_>) -> Result<String, String> {
    text.skip_word();
    let name = text.until('(')?.trim();
    let parameters = text.until(')')?;
    let parameters: Vec<&str> =
        parameters.split(',').filter(|one| !one.trim().is_empty()).collect();
    let threads = threads(text.until('{')?)?;
    let mut head = String::new();
    let mut sizes = String::new();
    for (at, parameter) in parameters.iter().enumerate() {
        let (name, bytes) = statement::parameter(parameter)?;
        let _ = writeln!(head, "const b64 {name} = (b64)arguments[{at}];");
        let _ = write!(sizes, "{bytes}, ");
    }
    let body = body(text)?;
    let count = parameters.len();
    Ok(format!(
        "extern \"C\" void brigade_cpu_call_{name}(void **arguments) {{\n{head}{body}}}\n\
         extern \"C\" unsigned brigade_cpu_sizes_{name}(unsigned *into, unsigned room) {{\n\
         const unsigned sizes[] = {{{sizes}0}};\n\
         for (unsigned at = 0; at < {count} && at < room; at++) into[at] = sizes[at];\n\
         return {count};\n}}\n\
         extern \"C\" const unsigned brigade_cpu_threads_{name} = {threads};\n"
    ))
}

/// How many threads a block may have: `.maxntid 512`, and perhaps more numbers behind it.
fn threads(directives: &str) -> Result<u32, String> {
    let Some((_, bound)) = directives.split_once(".maxntid") else { return Ok(1024) };
    let numbers = bound.split('.').next().unwrap_or_default().split(',');
    let numbers: Result<Vec<u32>, _> = numbers.map(|number| number.trim().parse()).collect();
    numbers.map(|all| all.iter().product()).map_err(|_| format!("not understood: {directives}"))
}

/// What stands between the braces of a kernel, of which the first has been read.
fn body(text: &mut Text<'_>) -> Result<String, String> {
    let mut lines = String::new();
    let (mut depth, mut shared) = (1, 0);
    loop {
        match text.peek().ok_or("a kernel has no end")? {
            '{' => {
                depth += 1;
                lines.push_str("{\n");
                text.skip(1);
            }
            '}' => {
                depth -= 1;
                text.skip(1);
                if depth == 0 && shared > SHARED_BYTES {
                    return Err(format!("a kernel has {shared} bytes of shared memory"));
                }
                if depth == 0 {
                    return Ok(lines);
                }
                lines.push_str("}\n");
            }
            _ => {
                if let Some(label) = text.label() {
                    let _ = writeln!(lines, "{}:;", statement::label(label));
                } else {
                    lines.push_str(&Statement::of(text.until(';')?)?.line(&mut shared)?);
                }
            }
        }
    }
}
