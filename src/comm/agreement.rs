//! Settings that all ranks of a communicator give alike, compared when the ranks meet.
//!
//! NICs compare a hash of them as well, which names no setting, and after which a rank only waits
//! in vain.

use ringbell_nic_core::collective::CollectiveSettings;

use super::CollectiveError;

const SETTINGS: usize = 15;
/// Bytes of a rank's settings in its part of a round.
pub(super) const BYTES: usize = SETTINGS * 8;

/// A rank's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Agreed([u64; SETTINGS]);

impl Agreed {
    pub(super) fn of(settings: &CollectiveSettings) -> Agreed {
        Agreed(settings.agreed().map(|(_, value)| value))
    }

    pub(super) fn encode(self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        let (words, _) = out.as_chunks_mut::<8>();
        for (word, value) in words.iter_mut().zip(self.0) {
            *word = value.to_le_bytes();
        }
        out
    }

    pub(super) fn decode(bytes: &[u8; BYTES]) -> Agreed {
        let (words, _) = bytes.as_chunks::<8>();
        let mut out = [0; SETTINGS];
        for (value, word) in out.iter_mut().zip(words) {
            *value = u64::from_le_bytes(*word);
        }
        Agreed(out)
    }
}

/// Refuses ranks whose settings differ: the first that differs from rank 0 is named, on every rank.
pub(super) fn check(all: &[Agreed]) -> Result<(), CollectiveError> {
    let Some(first) = all.first() else {
        return Ok(());
    };
    let names = CollectiveSettings::default().agreed().map(|(name, _)| name);
    for (rank, other) in (0..).zip(all) {
        for (setting, (a, b)) in names.into_iter().zip(first.0.into_iter().zip(other.0)) {
            if a != b {
                return Err(CollectiveError::Settings {
                    setting,
                    rank,
                    has: b,
                    first: a,
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_survives_and_the_rank_that_differs_is_named() {
        let default = CollectiveSettings::default();
        let same = Agreed::of(&default);
        assert!(check(&[]).is_ok() && check(&[same, same]).is_ok());
        for (setting, value) in default.agreed() {
            let mut other = default.clone();
            let value = if value < 2 { 1 - value } else { value * 2 };
            other.set(setting, value).expect("a name");
            let other = Agreed::of(&other);
            assert_eq!(Agreed::decode(&other.encode()), other);
            let e = check(&[same, same, other, same]).expect_err(setting);
            let text = e.to_string();
            let whole = text.contains("rank 2") && text.contains(&format!("`{setting}`"));
            assert!(whole && text.contains(&value.to_string()), "{text}");
            assert_eq!(e.status(), Some(ringbell_nic_abi::Status::Mismatch));
        }
    }
}
