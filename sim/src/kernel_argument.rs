//! Arguments of a kernel that is simulated, as words of a command line.

use std::str::FromStr;

use ringbell_nic_abi::kernel_stream::{DATA_AT, MAX_LOG2, MIN_LOG2};

/// What a kernel gets for one of its parameters. Numbers take their size from the parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KernelArgument {
    /// `rb_comm`: the communicator of all ranks.
    Comm,
    /// The address of the rank's buffer.
    Buffer,
    /// Bytes of the buffer.
    Bytes,
    /// The rank's number.
    Rank,
    /// How many ranks there are.
    Ranks,
    /// The number of the rank behind it; behind the last stands rank 0.
    Next,
    /// The number of the rank before it; before rank 0 stands the last.
    Before,
    /// Number of the window that the buffers of all ranks are, for `gpu_window`.
    Window,
    /// `rb_stream_handle`: a stream between kernel and NIC of its own, whose ring has so many
    /// bytes, a power of two.
    Stream(u64),
    /// The address of so many further bytes, which are zero at first and are mapped for the NIC.
    Zeros(u64),
    /// An integer of 8, 16, 32 or 64 bits.
    Integer(i128),
    /// A `float` or a `double`.
    Real(f64),
}

/// What a kernel gets where nothing else is said.
pub const DEFAULT_ARGUMENTS: [KernelArgument; 3] = [
    KernelArgument::Comm,
    KernelArgument::Buffer,
    KernelArgument::Bytes,
];

/// Bytes of a stream's ring where nothing else is said.
const STREAM_BYTES: u64 = 64 << 10;

/// The words, for messages.
const WORDS: &str = "write comm, buffer, bytes, window, rank, ranks, next, before, stream, stream:SIZE, zeros:SIZE, or a number: 7, -1, 0x10, 0.5";

impl KernelArgument {
    /// Bytes of memory that it has of its own.
    pub(crate) fn own_bytes(&self) -> Option<u64> {
        match *self {
            KernelArgument::Stream(ring) => Some(DATA_AT + ring),
            KernelArgument::Zeros(bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl FromStr for KernelArgument {
    type Err = String;

    fn from_str(word: &str) -> Result<KernelArgument, String> {
        let (name, size) = match word.split_once(':') {
            Some((name, size)) => (name, Some(size)),
            None => (word, None),
        };
        Ok(match (name, size) {
            ("comm", None) => KernelArgument::Comm,
            ("buffer", None) => KernelArgument::Buffer,
            ("bytes", None) => KernelArgument::Bytes,
            ("rank", None) => KernelArgument::Rank,
            ("ranks", None) => KernelArgument::Ranks,
            ("next", None) => KernelArgument::Next,
            ("before", None) => KernelArgument::Before,
            ("window", None) => KernelArgument::Window,
            ("stream", None) => KernelArgument::Stream(STREAM_BYTES),
            ("stream", Some(size)) => {
                let bytes = size_of_word(size)?;
                let (least, most) = (1 << MIN_LOG2, 1 << MAX_LOG2);
                if !bytes.is_power_of_two() || !(least..=most).contains(&bytes) {
                    return Err(format!(
                        "the ring of a stream has a power of two of bytes, {least} to {most}"
                    ));
                }
                KernelArgument::Stream(bytes)
            }
            ("zeros", Some(size)) => match size_of_word(size)? {
                0 => return Err("memory of 0 bytes has no address; give zeros:SIZE".into()),
                bytes => KernelArgument::Zeros(bytes),
            },
            (_, None) => number(word).ok_or(WORDS)?,
            _ => return Err(WORDS.into()),
        })
    }
}

/// A size: K, M and G are powers of 1,024.
fn size_of_word(word: &str) -> Result<u64, String> {
    let (digits, unit) = match word.as_bytes().last() {
        Some(b'k' | b'K') => (&word[..word.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&word[..word.len() - 1], 1 << 20),
        Some(b'g' | b'G') => (&word[..word.len() - 1], 1 << 30),
        _ => (word, 1),
    };
    let number = digits.parse::<u64>().ok();
    let bytes = number.and_then(|n| n.checked_mul(unit));
    bytes.ok_or_else(|| format!("`{word}` is no size; write one as 64K"))
}

fn number(word: &str) -> Option<KernelArgument> {
    let (sign, digits) = match word.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, word),
    };
    let integer = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    };
    if let Some(n) = integer {
        return Some(KernelArgument::Integer(sign * i128::from(n)));
    }
    // Words such as `nan` and `infinity` are none: a digit begins a number.
    let is_real = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let real = is_real.then(|| word.parse().ok()).flatten();
    real.map(KernelArgument::Real)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_arguments_and_others_are_refused() {
        use KernelArgument as A;
        let of = |word: &str| word.parse::<A>();
        for (word, is) in [
            ("comm", A::Comm),
            ("buffer", A::Buffer),
            ("bytes", A::Bytes),
            ("window", A::Window),
            ("rank", A::Rank),
            ("ranks", A::Ranks),
            ("next", A::Next),
            ("before", A::Before),
            ("stream", A::Stream(65_536)),
            ("stream:4K", A::Stream(4_096)),
            ("zeros:3M", A::Zeros(3 << 20)),
            ("7", A::Integer(7)),
            ("-1", A::Integer(-1)),
            ("0xffffffffffffffff", A::Integer(u64::MAX.into())),
            ("-9223372036854775808", A::Integer(i64::MIN.into())),
            ("0.5", A::Real(0.5)),
            ("-.25", A::Real(-0.25)),
            ("1e3", A::Real(1_000.0)),
        ] {
            assert_eq!(of(word), Ok(is), "{word}");
        }
        for word in [
            "",
            "comm:1",
            "stream:",
            "stream:3",
            "stream:32",
            "stream:2G",
            "zeros",
            "zeros:0",
            "zeros:x",
            "zeros:18446744073709551615K",
            "nan",
            "-inf",
            "0x",
            "--1",
            "1f",
            "buffers",
        ] {
            assert!(of(word).is_err(), "{word}: {:?}", of(word));
        }
    }
}
