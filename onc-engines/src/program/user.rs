//! Users' programs: read from text, and proved.

use ringbell_nic_abi::CollectiveKind;

use super::{check, parse, CheckError, Limits, Program, Proof, TextError};

/// A user's programs for all ranks of a communicator, proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserProgram {
    programs: Vec<Program>,
    proof: Proof,
}

/// Why a user's program is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UserProgramError {
    /// It cannot be read.
    #[error("the program cannot be read: {0}")]
    Text(#[from] TextError),
    /// The checker refuses it.
    #[error("the program is wrong: {0}")]
    Check(#[from] CheckError),
}

impl UserProgram {
    /// Reads a text (see [`parse`]) and proves it.
    ///
    /// # Errors
    /// The line and column that cannot be read, or the rank and step that are wrong.
    pub fn load(text: &str, limits: &Limits) -> Result<UserProgram, UserProgramError> {
        let programs = parse(text)?;
        let proof = check(&programs, limits)?;
        Ok(UserProgram { programs, proof })
    }

    /// The collective that it computes.
    pub fn kind(&self) -> CollectiveKind {
        self.programs[0].kind
    }

    /// Ranks of the communicators that it fits.
    pub fn ranks(&self) -> u32 {
        self.proof.ranks
    }

    /// The only root that it has; 0 where the collective has none.
    pub fn root(&self) -> u32 {
        self.programs[0].root
    }

    /// The result of the check.
    pub fn proof(&self) -> &Proof {
        &self.proof
    }

    /// All programs, by rank.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{format, generate_all};
    use ringbell_nic_abi::Algorithm;

    #[test]
    fn a_right_program_is_loaded_and_a_wrong_one_refused_with_rank_and_step() {
        let chain = generate_all(CollectiveKind::Broadcast, Algorithm::Chain, 3, 1).unwrap();
        let text = format(&chain);
        let user = UserProgram::load(&text, &Limits::default()).unwrap();
        assert_eq!(
            (user.kind(), user.ranks(), user.root()),
            (chain[0].kind, 3, 1)
        );
        assert_eq!(user.programs()[2].steps, chain[2].steps);
        let wrong = text.replace("1: net 1 -> output[0], net 0", "1: net 1 -> output[0]");
        assert_ne!(wrong, text);
        assert_eq!(
            UserProgram::load(&wrong, &Limits::default())
                .unwrap_err()
                .to_string(),
            "the program is wrong: rank 0, step 0: receives from rank 2 (channel 0), which has no send left for it: add one there, or receive from another rank"
        );
    }
}
