//! CUDA's words in a source that was preprocessed, as words of C++.

/// The source for a compiler of processors: shared memory belongs to the thread that runs a block,
/// and every kernel gets two functions that `kernel.rs` finds by its name.
pub(crate) fn rewrite(source: &str) -> String {
    let kernels = kernels(source);
    let mut text = shared(source).replace("__global__", "");
    for name in kernels {
        text.push_str(&format!(
            "\nextern \"C\" void brigade_cpu_call_{name}(void **arguments) {{ \
             brigade_cpu::call({name}, arguments); }}\n\
             extern \"C\" unsigned brigade_cpu_sizes_{name}(unsigned *into, unsigned room) {{ \
             return brigade_cpu::sizes({name}, into, room); }}\n"
        ));
    }
    text
}

fn is_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// The names of kernels that can be looked up: those that are `extern "C"`.
fn kernels(source: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (at, word) in source.match_indices("__global__") {
        let is_c = source[..at].trim_end().ends_with("extern \"C\"");
        let Some((declared, _)) = source[at + word.len()..].split_once('(') else { continue };
        let name = declared.trim_end().rsplit(|letter| !is_name(letter)).next();
        let name = name.unwrap_or_default();
        if is_c && !name.is_empty() && !found.iter().any(|other| other == name) {
            found.push(name.to_owned());
        }
    }
    found
}

/// `extern __shared__ T name[];` becomes a pointer, other shared memory a thread's own.
fn shared(source: &str) -> String {
    const WORD: &str = "__shared__";
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, after)) = rest.split_once(WORD) {
        match before.trim_end().strip_suffix("extern").zip(after.split_once(';')) {
            Some((before, (declared, after))) => {
                text.push_str(before);
                text.push_str(&pointer(declared));
                rest = after;
            }
            None => {
                text.push_str(before);
                text.push_str("static thread_local");
                rest = after;
            }
        }
    }
    text.push_str(rest);
    text
}

fn pointer(declared: &str) -> String {
    let declared = declared.split('[').next().unwrap_or_default().trim();
    // An alignment in front of the type: any is met.
    let plain = match declared.strip_prefix("__attribute__") {
        Some(attribute) => behind_parentheses(attribute).trim(),
        None => declared,
    };
    let name = plain.rsplit(|letter| !is_name(letter)).next().unwrap_or_default();
    let kind = plain[..plain.len() - name.len()].trim_end();
    format!("{kind} *{name} = ({kind} *)brigade_cpu::dynamic_shared();")
}

/// What comes after the parentheses that the text begins with.
fn behind_parentheses(text: &str) -> &str {
    let mut depth = 0;
    for (at, letter) in text.char_indices() {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        if depth == 0 && letter == ')' {
            return &text[at + 1..];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_by_their_names() {
        let source = "extern \"C\" __global__ void one(int a) {}\n\
                      extern \"C\"\n__global__ void two (int a);\n\
                      template <class T> __global__ void three(T a) {}";
        assert_eq!(kernels(source), ["one", "two"]);
    }

    #[test]
    fn shared_memory_becomes_the_threads_own() {
        let text = shared("extern __shared__ float4 all[]; __shared__ int some[4];");
        assert!(text.contains("float4 *all = (float4 *)brigade_cpu::dynamic_shared();"), "{text}");
        assert!(text.contains("static thread_local int some[4];"), "{text}");
        let aligned = shared("extern __shared__ __attribute__((aligned(16))) unsigned char b[];");
        assert!(aligned.contains("unsigned char *b = (unsigned char *)"), "{aligned}");
    }
}
