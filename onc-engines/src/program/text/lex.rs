//! The lexer of one line of text.

use super::error::{TextError, TextProblem};

/// The rest of a line.
#[derive(Debug, Clone)]
pub(super) struct Line<'a> {
    number: usize,
    column: usize,
    rest: &'a str,
}

impl<'a> Line<'a> {
    /// A line without its comment.
    pub(super) fn new(number: usize, text: &'a str) -> Line<'a> {
        let text = text.split('#').next().unwrap_or("");
        let mut line = Line {
            number,
            column: 1,
            rest: text.trim_end(),
        };
        line.skip(0);
        line
    }

    /// Goes on by `bytes`, and past blanks.
    fn skip(&mut self, bytes: usize) {
        let (over, rest) = self.rest.split_at(bytes);
        let next = rest.trim_start();
        let blanks = &rest[..rest.len() - next.len()];
        self.column += over.chars().count() + blanks.chars().count();
        self.rest = next;
    }

    pub(super) fn at_end(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn starts_with_digit(&self) -> bool {
        self.rest.starts_with(|c: char| c.is_ascii_digit())
    }

    pub(super) fn error(&self, problem: TextProblem) -> TextError {
        TextError {
            line: self.number,
            column: self.column,
            problem,
        }
    }

    pub(super) fn expected(&self, wanted: &'static str) -> TextError {
        let found = match self.rest.split_whitespace().next() {
            None => "the end of the line".to_owned(),
            // The beginning of the word is enough for a message.
            Some(word) => format!("{:?}", word.chars().take(24).collect::<String>()),
        };
        self.error(TextProblem::Expected { wanted, found })
    }

    /// Goes past `token` if it is next; a word only as a whole.
    pub(super) fn accept(&mut self, token: &str) -> bool {
        let Some(after) = self.rest.strip_prefix(token) else {
            return false;
        };
        let is_word = token.ends_with(|c: char| c.is_ascii_alphabetic());
        if is_word
            && after.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
        {
            return false;
        }
        self.skip(token.len());
        true
    }

    pub(super) fn word(&mut self, token: &str, wanted: &'static str) -> Result<(), TextError> {
        self.symbol(token, wanted)
    }

    pub(super) fn symbol(&mut self, token: &str, wanted: &'static str) -> Result<(), TextError> {
        if self.accept(token) {
            Ok(())
        } else {
            Err(self.expected(wanted))
        }
    }

    /// A name of letters and hyphens.
    pub(super) fn name(&mut self, wanted: &'static str) -> Result<String, TextError> {
        let is_part = |c: char| c.is_ascii_alphabetic() || matches!(c, '-' | '_');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        if end == 0 {
            return Err(self.expected(wanted));
        }
        let name = self.rest[..end].to_owned();
        self.skip(end);
        Ok(name)
    }

    /// A decimal number up to `limit`.
    pub(super) fn number(&mut self, limit: u32, wanted: &'static str) -> Result<u32, TextError> {
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(self.rest.len());
        if end == 0 {
            return Err(self.expected(wanted));
        }
        let digits = &self.rest[..end];
        match digits.parse() {
            Ok(number) if number <= limit => {
                self.skip(end);
                Ok(number)
            }
            // All are digits, so the only other failure is one of size.
            _ => {
                let number = digits.chars().take(24).collect();
                Err(self.error(TextProblem::TooLarge { number, limit }))
            }
        }
    }

    /// Nothing more may come.
    pub(super) fn end(&self) -> Result<(), TextError> {
        if self.at_end() {
            return Ok(());
        }
        Err(self.expected("the end of the line"))
    }
}
