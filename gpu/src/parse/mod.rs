//! PTX text to a typed [`Module`].
//!
//! - `lexer`: words, signs, numbers;
//! - `directive`: the module: variables, functions, files;
//! - `variable`: one variable or parameter; `scope`: the names that are known;
//! - `body`: a function's registers, variables, labels and instructions;
//! - `operand`: what an instruction names;
//! - `form`: the parts of an opcode, of which none may be left over;
//! - `arithmetic`, `extended`, `half`, `convert`, `access`, `asynchronous`, `matrix`, `control`:
//!   instructions to [`Op`](crate::module::Op).
//!
//! What is not implemented is refused here, with file, line and instruction. A module that was read
//! can be compiled.

mod access;
mod arithmetic;
mod asynchronous;
mod body;
mod control;
mod convert;
mod directive;
mod extended;
mod form;
mod half;
mod lexer;
mod matrix;
mod operand;
mod reader;
mod refusal;
mod scope;
mod variable;

use sha2::{Digest, Sha256};

pub use refusal::ParseError;

use crate::module::Module;

/// Reads a module. `file` is what errors call it.
///
/// # Errors
/// [`ParseError`]: bad text, or something that this GPU does not have.
pub fn parse(file: &str, text: &str) -> Result<Module, ParseError> {
    let mut linker = Linker::new(file);
    linker.add(file, text)?;
    linker.end()
}

/// Reads several texts as one module: what one declares as `.extern` another defines, and what is
/// neither `.extern`, `.visible` nor `.weak` (§11.6) is its text's own.
pub struct Linker {
    linked: directive::Linked,
    hashes: Vec<[u8; 32]>,
    /// A text reads `%envreg`.
    environment: bool,
}

impl std::fmt::Debug for Linker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Linker({} texts)", self.hashes.len())
    }
}

impl Linker {
    /// A module that errors call `name`.
    pub fn new(name: &str) -> Linker {
        Linker {
            linked: directive::Linked::new(name),
            hashes: Vec::new(),
            environment: false,
        }
    }

    /// Reads a text, which errors call `file`. After an error the module is of no use.
    ///
    /// # Errors
    /// [`ParseError`]: as [`parse`], or a name that another text has defined.
    pub fn add(&mut self, file: &str, text: &str) -> Result<(), ParseError> {
        let tokens = lexer::tokens(text).map_err(|(line, what)| ParseError {
            file: file.to_owned(),
            line,
            what,
        })?;
        let lines = u32::try_from(text.lines().count()).unwrap_or(u32::MAX);
        self.hashes.push(Sha256::digest(text).into());
        self.environment |= text.contains("%envreg");
        self.linked.add(file, tokens, lines)
    }

    /// The module of all texts.
    ///
    /// # Errors
    /// [`ParseError`]: something is used and defined in no text.
    pub fn end(self) -> Result<Module, ParseError> {
        let mut module = self.linked.end()?;
        module.environment = self.environment;
        module.text_hash = match self.hashes[..] {
            [one] => one,
            _ => Sha256::digest(self.hashes.concat()).into(),
        };
        Ok(module)
    }
}
