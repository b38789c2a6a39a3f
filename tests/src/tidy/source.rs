//! A file with its text, and the same text with everything blanked that is not code.

/// One file of the project.
pub struct Source {
    /// Its path from the root of the project, with slashes.
    pub path: String,
    /// What is in it.
    pub text: String,
    /// The text with comments and the contents of literals replaced by spaces, line by line as long
    /// as before. Only meaningful for Rust.
    pub code: String,
}

impl Source {
    /// A file with this text.
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let (path, text) = (path.into(), text.into());
        let code = if path.ends_with(".rs") { blank(&text) } else { text.clone() };
        Self { path, text, code }
    }

    /// Lines of the text, with their numbers from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Lines of code alone, with their numbers from 1.
    pub fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// What the lexer is inside of.
enum Inside {
    Code,
    LineComment,
    /// How deep comments are nested.
    BlockComment(u32),
    Text,
    /// How many `#` end it.
    RawText(usize),
}

/// Replace comments and the contents of literals by spaces.
fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut inside = Inside::Code;
    let mut at = 0;
    while at < chars.len() {
        let rest = &chars[at..];
        let (taken, shown, next) = step(rest, inside, out.chars().next_back());
        for (index, c) in rest[..taken].iter().enumerate() {
            let keep = *c == '\n' || index < shown;
            out.push(if keep { *c } else { ' ' });
        }
        inside = next;
        at += taken;
    }
    out
}

/// From here: how many characters to take, how many of them to show, and what comes after.
fn step(rest: &[char], inside: Inside, before: Option<char>) -> (usize, usize, Inside) {
    let starts = |text: &str| text.chars().enumerate().all(|(i, c)| rest.get(i) == Some(&c));
    match inside {
        Inside::Code if starts("//") => (2, 0, Inside::LineComment),
        Inside::Code if starts("/*") => (2, 0, Inside::BlockComment(1)),
        Inside::Code if rest[0] == '"' => (1, 1, Inside::Text),
        Inside::Code if rest[0] == '\'' => (char_literal(rest), 1, Inside::Code),
        Inside::Code if !before.is_some_and(is_name) && raw_hashes(rest).is_some() => {
            let (prefix, hashes) = raw_hashes(rest).expect("asked the line above");
            (prefix + hashes + 1, 1, Inside::RawText(hashes))
        }
        Inside::Code => (1, 1, Inside::Code),
        Inside::LineComment if rest[0] == '\n' => (1, 1, Inside::Code),
        Inside::LineComment => (1, 0, Inside::LineComment),
        Inside::BlockComment(depth) if starts("/*") => (2, 0, Inside::BlockComment(depth + 1)),
        Inside::BlockComment(1) if starts("*/") => (2, 0, Inside::Code),
        Inside::BlockComment(depth) if starts("*/") => (2, 0, Inside::BlockComment(depth - 1)),
        Inside::BlockComment(depth) => (1, 0, Inside::BlockComment(depth)),
        Inside::Text if rest[0] == '\\' => (2.min(rest.len()), 0, Inside::Text),
        Inside::Text if rest[0] == '"' => (1, 1, Inside::Code),
        Inside::Text => (1, 0, Inside::Text),
        Inside::RawText(hashes) => {
            let ends = rest[0] == '"' && rest[1..].iter().take(hashes).all(|c| *c == '#');
            match ends && rest.len() > hashes {
                true => (1 + hashes, 1, Inside::Code),
                false => (1, 0, Inside::RawText(hashes)),
            }
        }
    }
}

/// Where a raw string begins: how long its `r` or `br` is, and how many `#` follow.
fn raw_hashes(rest: &[char]) -> Option<(usize, usize)> {
    let prefix = match rest {
        ['r', ..] => 1,
        ['b', 'r', ..] => 2,
        _ => return None,
    };
    let hashes = rest[prefix..].iter().take_while(|c| **c == '#').count();
    (rest.get(prefix + hashes) == Some(&'"')).then_some((prefix, hashes))
}

/// How long the literal at a `'` is; 1 where it is a lifetime.
fn char_literal(rest: &[char]) -> usize {
    match rest {
        ['\'', '\\', ..] => {
            let end = rest.iter().skip(3).position(|c| *c == '\'');
            end.map_or(1, |end| end + 4)
        }
        ['\'', _, '\'', ..] => 3,
        _ => 1,
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::blank;

    #[test]
    fn only_code_is_left() {
        for (text, code) in [
            ("a // b", "a     "),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("{ \" }", '{', 'a')"#, r#"f("      ", '  , '  )"#),
            ("r#\"{\"#;'\\'';x", "r     ;'   ;x"),
            ("fn f<'a>(x: &'a str) {", "fn f<'a>(x: &'a str) {"),
            ("\"a\nb\" c", "\" \n \" c"),
            ("for r in x { our\"s\" }", "for r in x { our\" \" }"),
            ("break br\"x\" bring", "break b      bring"),
        ] {
            let found = blank(text);
            assert_eq!(found.chars().count(), text.chars().count(), "{text}");
            assert_eq!(found.lines().count(), text.lines().count(), "{text}");
            let plain = |text: &str| text.replace([' ', '"'], "");
            assert_eq!(plain(&found), plain(code), "{text}");
        }
    }
}
