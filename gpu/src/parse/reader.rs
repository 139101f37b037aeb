//! A cursor over the tokens.

use super::lexer::{number, Number, Token, TokenKind};
use super::refusal::Refusal;

pub(super) struct Reader<'t> {
    tokens: Vec<Token<'t>>,
    at: usize,
}

impl<'t> Reader<'t> {
    pub(super) fn new(tokens: Vec<Token<'t>>) -> Reader<'t> {
        Reader { tokens, at: 0 }
    }

    /// The next token's text; empty at the end.
    pub(super) fn peek(&self) -> &'t str {
        self.ahead(0)
    }

    /// The text of the token `n` further on.
    pub(super) fn ahead(&self, n: usize) -> &'t str {
        self.tokens.get(self.at + n).map_or("", |t| t.text)
    }

    pub(super) fn at_end(&self) -> bool {
        self.at >= self.tokens.len()
    }

    /// Line of the next token, or of the last.
    pub(super) fn line(&self) -> u32 {
        let token = self.tokens.get(self.at).or(self.tokens.last());
        token.map_or(1, |t| t.line)
    }

    pub(super) fn take(&mut self) -> &'t str {
        let text = self.peek();
        self.at += 1;
        text
    }

    pub(super) fn eat(&mut self, text: &str) -> bool {
        let found = !self.at_end() && self.peek() == text;
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, text: &str) -> Result<(), Refusal> {
        if self.eat(text) {
            return Ok(());
        }
        Err(self.unexpected(&format!("`{text}`")))
    }

    /// A refusal that says what was expected here.
    pub(super) fn unexpected(&self, expected: &str) -> Refusal {
        if self.at_end() {
            return (
                self.line(),
                format!("the text ends where {expected} is expected"),
            );
        }
        (
            self.line(),
            format!("expected {expected}, not `{}`", self.peek()),
        )
    }

    /// A name.
    pub(super) fn word(&mut self, what: &str) -> Result<&'t str, Refusal> {
        let is_word = self
            .tokens
            .get(self.at)
            .is_some_and(|t| t.kind == TokenKind::Word);
        if !is_word {
            return Err(self.unexpected(what));
        }
        Ok(self.take())
    }

    /// A constant with its sign.
    pub(super) fn number(&mut self) -> Result<Number, Refusal> {
        let negative = self.eat("-");
        let Some(n) = number(self.peek()) else {
            return Err(self.unexpected("a number"));
        };
        self.at += 1;
        Ok(match n {
            n if !negative => n,
            Number::Int(v) => Number::Int(v.wrapping_neg()),
            Number::F32(v) => Number::F32(v ^ 1 << 31),
            Number::F64(v) => Number::F64(v ^ 1 << 63),
        })
    }

    /// A count or size.
    pub(super) fn count(&mut self, what: &str) -> Result<u32, Refusal> {
        let line = self.line();
        match self.number()? {
            Number::Int(v) => u32::try_from(v).ok(),
            _ => None,
        }
        .ok_or_else(|| (line, format!("{what} is no number from 0 to 2^32")))
    }

    /// Skips to behind the next `end`.
    pub(super) fn skip_past(&mut self, end: &str) -> Result<(), Refusal> {
        while !self.eat(end) {
            if self.at_end() {
                return Err(self.unexpected(&format!("`{end}`")));
            }
            self.at += 1;
        }
        Ok(())
    }
}
