//! Reading a text from its beginning to its end.

/// What is left of a module.
pub(super) struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let mut text = Self(text);
        text.skip_space();
        text
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.0.chars().next()
    }

    /// What stands before the next space.
    pub(super) fn peek_word(&self) -> Option<&'a str> {
        self.0.split_whitespace().next()
    }

    pub(super) fn skip_word(&mut self) {
        self.skip(self.peek_word().map_or(0, str::len));
    }

    pub(super) fn skip_line(&mut self) {
        self.skip(self.0.find('\n').unwrap_or(self.0.len()));
    }

    pub(super) fn skip(&mut self, bytes: usize) {
        self.0 = &self.0[bytes..];
        self.skip_space();
    }

    /// What stands before this letter, which is skipped too.
    pub(super) fn until(&mut self, letter: char) -> Result<&'a str, String> {
        let start = || self.0.chars().take(60).collect::<String>();
        let (before, after) =
            self.0.split_once(letter).ok_or_else(|| format!("no {letter:?} behind {}", start()))?;
        self.0 = after;
        self.skip_space();
        Ok(before)
    }

    /// The name of a place in the code, if one stands here.
    pub(super) fn label(&mut self) -> Option<&'a str> {
        let end = self.0.find(|letter: char| !is_name(letter))?;
        let (name, rest) = self.0.split_at(end);
        if name.is_empty() || !rest.starts_with(':') {
            return None;
        }
        self.skip(end + 1);
        Some(name)
    }

    /// Spaces, and comments.
    fn skip_space(&mut self) {
        loop {
            self.0 = self.0.trim_start();
            if !self.0.starts_with("//") {
                return;
            }
            self.0 = self.0.split_once('\n').map_or("", |(_, rest)| rest);
        }
    }
}

fn is_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '$')
}
