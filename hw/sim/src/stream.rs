//! Streams of 64-byte beats, as ports of blocks carry them.

/// Bytes of a beat.
pub const BEAT: usize = 64;

/// One beat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// Its bytes, as the port's words.
    pub data: [u32; BEAT / 4],
    /// Which bytes count, from bit 0 on.
    pub keep: u64,
    /// Whether the stream ends with it.
    pub last: bool,
}

impl Beat {
    /// A beat of at most 64 bytes; those it lacks are ones, so that a block which counts them shows
    /// it.
    pub fn new(bytes: &[u8], last: bool) -> Beat {
        let mut all = [0xff; BEAT];
        all[..bytes.len()].copy_from_slice(bytes);
        Beat {
            data: words(&all),
            keep: u64::MAX
                .checked_shr((BEAT - bytes.len()) as u32)
                .unwrap_or(0),
            last,
        }
    }

    /// The bytes that count.
    pub fn bytes(&self) -> Vec<u8> {
        let all = self.data.iter().flat_map(|w| w.to_le_bytes());
        let kept = |(i, byte)| (self.keep >> i & 1 == 1).then_some(byte);
        all.enumerate().filter_map(kept).collect()
    }
}

/// A stream as beats; an empty one is a beat without bytes.
pub fn beats(bytes: &[u8]) -> Vec<Beat> {
    let count = bytes.len().div_ceil(BEAT).max(1);
    (0..count)
        .map(|i| {
            let end = bytes.len().min((i + 1) * BEAT);
            Beat::new(&bytes[i * BEAT..end], i + 1 == count)
        })
        .collect()
}

/// A line of 64 bytes as the words of a port.
pub fn words(line: &[u8; BEAT]) -> [u32; BEAT / 4] {
    std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|b| line[4 * i + b])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beats_are_the_bytes_of_the_stream() {
        for len in [0usize, 1, 63, 64, 65, 128, 200] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let beats = beats(&bytes);
            assert_eq!(
                beats.iter().flat_map(Beat::bytes).collect::<Vec<_>>(),
                bytes
            );
            assert_eq!(beats.iter().filter(|b| b.last).count(), 1);
            assert!(beats.last().is_some_and(|b| b.last));
        }
    }
}
