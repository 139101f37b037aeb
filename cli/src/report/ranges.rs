//! Numbers for a person, runs of them shortened.

/// Ascending numbers as `0-3,8`.
pub(crate) fn ranges(numbers: impl IntoIterator<Item = usize>) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for n in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => parts.push((n, n)),
        }
    }
    let text = |&(a, b): &(usize, usize)| match a == b {
        true => a.to_string(),
        false => format!("{a}-{b}"),
    };
    parts.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::ranges;

    #[test]
    fn runs_are_shortened() {
        for (numbers, text) in [
            (&[][..], ""),
            (&[7], "7"),
            (&[0, 1], "0-1"),
            (&[0, 1, 2, 3, 8], "0-3,8"),
            (&[1, 3, 5, 6], "1,3,5-6"),
        ] {
            assert_eq!(ranges(numbers.iter().copied()), text);
        }
    }
}
