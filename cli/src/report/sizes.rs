//! Message sizes on the command line, as in nccl-tests: `-b 8 -e 16M -f 2`.

use clap::Args;

/// Flags of a sweep, with the names of nccl-tests.
#[derive(Debug, Clone, Args)]
pub(crate) struct SweepArgs {
    /// Smallest message in bytes; K, M, G and T are powers of 1,024
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", value_parser = parse_size)]
    pub(crate) min: Option<u64>,
    /// Largest message
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", value_parser = parse_size)]
    pub(crate) max: Option<u64>,
    /// Factor between two sizes [default: 2; collectives without -b, -e and -i: 4]
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR",
          value_parser = clap::value_parser!(u64).range(2..), conflicts_with = "step")]
    pub(crate) factor: Option<u64>,
    /// Bytes between two sizes, instead of a factor
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", value_parser = parse_nonzero)]
    pub(crate) step: Option<u64>,
    /// Timed iterations of each size [default: by size]
    #[arg(short = 'n', long = "iters", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iters: Option<u64>,
    /// Iterations before the timed ones [default: by size]
    #[arg(short = 'w', long = "warmup_iters", value_name = "N")]
    pub(crate) warmup: Option<u64>,
    /// Verify the data: 1 yes, 0 no
    #[arg(short = 'c', long = "check", value_name = "0|1", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(crate) check: u8,
}

impl SweepArgs {
    /// The sizes in rising order; `min` and `max` are what the benchmark uses without `-b` and
    /// `-e`.
    ///
    /// # Errors
    /// A text for the user when the range is empty.
    pub(crate) fn sizes(&self, min: u64, max: u64) -> Result<Vec<u64>, String> {
        let lo = self.min.unwrap_or_else(|| min.min(self.max.unwrap_or(min)));
        let hi = self.max.unwrap_or_else(|| max.max(lo));
        if lo > hi {
            return Err(format!(
                "-b {} is larger than -e {}; give the smaller size to -b",
                size_text(lo),
                size_text(hi)
            ));
        }
        let factor = self.factor.unwrap_or(2);
        let mut sizes = vec![lo];
        let mut size = lo;
        while let Some(next) = match self.step {
            Some(step) => size.checked_add(step),
            // A factor never leaves 0: go on from 1.
            None => size
                .max(u64::from(size == 0))
                .checked_mul(if size == 0 { 1 } else { factor }),
        } {
            if next > hi {
                break;
            }
            sizes.push(next);
            size = next;
        }
        Ok(sizes)
    }

    /// Refuses flags of sizes for a benchmark with only one size; `why` is the reason.
    ///
    /// # Errors
    /// A text for the user when a size was given.
    pub(crate) fn no_sizes(&self, why: &str) -> Result<(), String> {
        let given = [
            ("-b", self.min.is_some()),
            ("-e", self.max.is_some()),
            ("-f", self.factor.is_some()),
            ("-i", self.step.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(format!("{flag} would change nothing: {why}")),
            None => Ok(()),
        }
    }

    /// Whether data is to be verified.
    pub(crate) fn checks(&self) -> bool {
        self.check == 1
    }
}

/// Parses `8`, `64K`, `1.5M`, `2GiB`: powers of 1,024.
///
/// # Errors
/// A text for the user.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || {
        format!("`{text}` is not a size; write a number of bytes with K, M, G or T behind it, such as 64K")
    };
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(lower.len());
    let (number, unit) = lower.split_at(digits);
    let shift = match unit
        .strip_suffix("ib")
        .or(unit.strip_suffix('b'))
        .unwrap_or(unit)
    {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(bad()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole
            .checked_mul(1 << shift)
            .ok_or_else(|| format!("{text} does not fit into 64 bits"));
    }
    let value: f64 = number.parse().map_err(|_| bad())?;
    let bytes = value * (1u64 << shift) as f64;
    // 2^53: beyond it a fraction would be rounded silently.
    if bytes.fract() != 0.0 || bytes > 9_007_199_254_740_992.0 {
        return Err(format!("{text} is not a whole number of bytes"));
    }
    Ok(bytes as u64)
}

fn parse_nonzero(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("the step must be at least 1 byte".into()),
        n => Ok(n),
    }
}

/// A size in the form of an option: `8`, `64K`, `1536`.
pub(crate) fn size_text(bytes: u64) -> String {
    for (shift, unit) in [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')] {
        if bytes >> shift > 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        sweep: SweepArgs,
    }

    fn sizes(args: &[&str]) -> Result<Vec<u64>, String> {
        let cli = Cli::try_parse_from([&["x"], args].concat()).map_err(|e| e.to_string())?;
        cli.sweep.sizes(8, 64)
    }

    #[test]
    fn sizes_are_parsed_as_nccl_tests_does() {
        for (text, bytes) in [
            ("8", 8),
            ("64K", 65536),
            ("1.5M", 3 << 19),
            ("2GiB", 2 << 30),
            ("1tb", 1 << 40),
            ("0", 0),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "K",
            "-1",
            "8X",
            "1.0001K",
            "99999999999999999999",
            "16777216T",
            "1..5K",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        for bytes in [0, 1, 1023, 1024, 1536, 3 << 20, u64::MAX] {
            assert_eq!(parse_size(&size_text(bytes)), Ok(bytes));
        }
    }

    #[test]
    fn sweeps() {
        assert_eq!(sizes(&[]), Ok(vec![8, 16, 32, 64]));
        assert_eq!(sizes(&["-b", "8", "-e", "8"]), Ok(vec![8]));
        assert_eq!(sizes(&["-b", "1K"]), Ok(vec![1024]));
        assert_eq!(sizes(&["-e", "4"]), Ok(vec![4]));
        assert_eq!(sizes(&["-b", "0", "-e", "4"]), Ok(vec![0, 1, 2, 4]));
        assert_eq!(sizes(&["-f", "3"]), Ok(vec![8, 24]));
        assert_eq!(sizes(&["-i", "24"]), Ok(vec![8, 32, 56]));
        assert!(sizes(&["-b", "2", "-e", "1"]).is_err());
        assert!(sizes(&["-f", "1"]).is_err());
        let only = |args: &[&str]| {
            let cli = Cli::try_parse_from([&["x"], args].concat()).expect("parsed");
            cli.sweep.no_sizes("it has one size")
        };
        assert_eq!(only(&["-n", "3"]), Ok(()));
        for flag in ["-b", "-e", "-f", "-i"] {
            assert!(only(&[flag, "8"]).is_err_and(|e| e.contains(flag)));
        }
        assert!(sizes(&["-i", "0"]).is_err());
        assert_eq!(
            sizes(&["-b", "18446744073709551615", "-e", "18446744073709551615"]),
            Ok(vec![u64::MAX])
        );
    }
}
