//! PTX text to a typed [`Module`].
//!
//! - `lexer`: words, signs, numbers;
//! - `directive`: the module: variables, functions, files;
//! - `body`: a function's registers, variables, labels and instructions;
//! - `operand`: what an instruction names;
//! - `form`: the parts of an opcode, of which none may be left over;
//! - `arithmetic`, `extended`, `half`, `convert`, `access`, `asynchronous`, `matrix`, `control`: instructions to [`Op`](crate::module::Op).
//!
//! What is not implemented is refused here, with file, line and instruction. A module that was read can be compiled.

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

use sha2::{Digest, Sha256};

use crate::module::Module;

/// Why a text was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {what}")]
pub struct ParseError {
    /// The file, as the caller calls it.
    pub file: String,
    /// Line of the text, from 1.
    pub line: u32,
    /// What is wrong.
    pub what: String,
}

/// Line and reason, before the file is known.
type Refusal = (u32, String);

/// Most registers of a function, and most statements of a module: text beyond is refused, not compiled for hours.
const MOST: u32 = 1_000_000;

/// Reads a module. `file` is what errors call it.
///
/// # Errors
/// [`ParseError`]: bad text, or something that this GPU does not have.
pub fn parse(file: &str, text: &str) -> Result<Module, ParseError> {
    let refuse = |(line, what): Refusal| ParseError {
        file: file.to_owned(),
        line,
        what,
    };
    let tokens = lexer::tokens(text).map_err(refuse)?;
    let mut module = directive::module(file, tokens).map_err(refuse)?;
    module.text_hash = Sha256::digest(text).into();
    Ok(module)
}
