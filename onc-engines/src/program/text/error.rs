//! What is wrong with a text that is no program, and where.

/// Version of the form.
pub(super) const VERSION: u32 = 1;

/// Text that is no program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct TextError {
    /// From 1.
    pub line: usize,
    /// Character of the line, from 1.
    pub column: usize,
    /// What is wrong.
    pub problem: TextProblem,
}

/// An error in a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextProblem {
    /// Something else belongs here.
    #[error("here is {found}, but {wanted} belongs here")]
    Expected {
        /// What belongs here.
        wanted: &'static str,
        /// What is here.
        found: String,
    },
    /// A number that does not fit.
    #[error("{number} is too large: at most {limit}")]
    TooLarge {
        /// As written.
        number: String,
        /// At most.
        limit: u32,
    },
    /// Another version of the form.
    #[error("version {version} of the form: this program reads version {VERSION}")]
    Version {
        /// As written.
        version: u32,
    },
    /// No such collective.
    #[error("there is no collective {name:?}: write broadcast, reduce, scatter, gather, all-gather, reduce-scatter, all-reduce, all-to-all or barrier")]
    Collective {
        /// As written.
        name: String,
    },
    /// A run of chunks that ends before it begins.
    #[error("the run {first}..{end} has no chunk")]
    EmptyRun {
        /// First chunk.
        first: u32,
        /// One past the last.
        end: u32,
    },
    /// Not all ranks, or not in order.
    #[error("{has} ranks have a program, the text says ranks {ranks}: write `rank 0` to `rank {}` in order", ranks.saturating_sub(1))]
    Ranks {
        /// Programs.
        has: u32,
        /// By the header.
        ranks: u32,
    },
    /// A program without a rank.
    #[error("0 ranks: a program has at least one")]
    NoRanks,
    /// A line of the header that is missing.
    #[error("the header lacks a line `{line}`")]
    Missing {
        /// Which.
        line: &'static str,
    },
    /// A root of a collective that has none.
    #[error("{kind} has no root: leave the line out")]
    NoRoot {
        /// As spelled in texts.
        kind: String,
    },
    /// A root beyond the ranks.
    #[error("rank {root} cannot be the root of {ranks} ranks: write one below {ranks}")]
    Root {
        /// As written.
        root: u32,
        /// Ranks that there are.
        ranks: u32,
    },
    /// A step that moves nothing to nowhere.
    #[error("a step without operand and result")]
    EmptyStep,
}
