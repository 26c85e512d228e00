//! A place in the text of a mix, and what can be read there.

use super::SyntaxError;

/// Walks over a text by characters, so that columns count what a reader sees.
pub(super) struct Cursor<'a> {
    text: &'a str,
    chars: Vec<char>,
    /// The place, in characters from 0.
    pub(super) at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, chars: text.chars().collect(), at: 0 }
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn take_while(&mut self, accept: impl Fn(char) -> bool) -> String {
        let taken: String = self.chars.iter().skip(self.at).take_while(|c| accept(**c)).collect();
        self.at += taken.chars().count();
        taken
    }

    pub(super) fn word(&mut self) -> String {
        self.take_while(|c| c.is_alphabetic() || c == '_' || c == '-')
    }

    /// A whole number; one too large to hold counts as the largest, which every limit refuses.
    pub(super) fn number(&mut self) -> Option<usize> {
        let digits = self.take_while(|c| c.is_ascii_digit());
        if digits.is_empty() { None } else { Some(digits.parse().unwrap_or(usize::MAX)) }
    }

    /// A fault at a place of the text.
    pub(super) fn fault(&self, at: usize, wrong: &str, right: &str) -> SyntaxError {
        SyntaxError { text: self.text.to_owned(), column: at + 1, wrong: wrong.to_owned(), right: right.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_end_where_something_else_begins() {
        let mut cursor = Cursor::new("full@12+");
        assert_eq!((cursor.word().as_str(), cursor.peek()), ("full", Some('@')));
        assert_eq!((cursor.number(), cursor.at), (None, 4));
        cursor.at += 1;
        assert_eq!((cursor.number(), cursor.at), (Some(12), 7));
        assert_eq!(Cursor::new("9".repeat(30).as_str()).number(), Some(usize::MAX));
    }
}
