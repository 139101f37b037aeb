//! Words and signs of PTX text (§4.1 to §4.5).

/// A word, a string, or a sign of one character, with its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'t> {
    /// The text; a string's without its quotes.
    pub(super) text: &'t str,
    pub(super) kind: TokenKind,
    /// From 1.
    pub(super) line: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// Names, directives, numbers: letters, digits, `_ $ % .`, and `::` inside.
    Word,
    String,
    Sign,
}

fn of_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'.' | b'%' | b'$' | b'_')
}

/// Splits the text.
///
/// # Errors
/// Line and what is wrong: a comment or string without an end.
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, (u32, String)> {
    let bytes = text.as_bytes();
    let (mut at, mut line, mut out) = (0, 1u32, Vec::new());
    while at < bytes.len() {
        let (start, c) = (at, bytes[at]);
        match c {
            b'\n' => {
                line += 1;
                at += 1;
                continue;
            }
            _ if c.is_ascii_whitespace() || c == 0 => {
                at += 1;
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                while at < bytes.len() && bytes[at] != b'\n' {
                    at += 1;
                }
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let first = line;
                at += 2;
                while at + 1 < bytes.len() && &bytes[at..at + 2] != b"*/" {
                    line += u32::from(bytes[at] == b'\n');
                    at += 1;
                }
                if at + 1 >= bytes.len() {
                    return Err((first, "a comment has no end".to_owned()));
                }
                at += 2;
                continue;
            }
            b'"' => {
                let first = line;
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    line += u32::from(bytes[at] == b'\n');
                    at += 1;
                }
                if at == bytes.len() {
                    return Err((first, "a string has no end".to_owned()));
                }
                at += 1;
                out.push(Token {
                    text: &text[start + 1..at - 1],
                    kind: TokenKind::String,
                    line: first,
                });
                continue;
            }
            _ if of_word(c) => {
                while at < bytes.len() {
                    let scoped = bytes[at..].starts_with(b"::")
                        && bytes.get(at + 2).is_some_and(|c| of_word(*c));
                    match bytes[at] {
                        c if of_word(c) => at += 1,
                        _ if scoped => at += 2,
                        _ => break,
                    }
                }
            }
            // Whole characters, so that slices of the text stay valid.
            _ => at += text[at..].chars().next().map_or(1, char::len_utf8),
        }
        out.push(Token {
            text: &text[start..at],
            kind: if of_word(c) {
                TokenKind::Word
            } else {
                TokenKind::Sign
            },
            line,
        });
    }
    Ok(out)
}

/// A number of the text (§4.5).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    Int(i64),
    F32(u32),
    F64(u64),
}

/// Reads a constant; `None` if the word is none.
pub(super) fn number(word: &str) -> Option<Number> {
    if !word.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let prefixed = |low: &str, high: &str| word.strip_prefix(low).or(word.strip_prefix(high));
    if let Some(hex) = prefixed("0f", "0F") {
        return u32::from_str_radix(hex, 16).ok().map(Number::F32);
    }
    if let Some(hex) = prefixed("0d", "0D") {
        return u64::from_str_radix(hex, 16).ok().map(Number::F64);
    }
    if word.contains('.') {
        return word.parse().ok().map(|v: f64| Number::F64(v.to_bits()));
    }
    let digits = word.trim_end_matches('U');
    let (digits, radix) = if let Some(hex) = digits.strip_prefix("0x").or(digits.strip_prefix("0X"))
    {
        (hex, 16)
    } else if let Some(bits) = digits.strip_prefix("0b").or(digits.strip_prefix("0B")) {
        (bits, 2)
    } else if digits.len() > 1 && digits.starts_with('0') {
        (digits, 8)
    } else {
        (digits, 10)
    };
    let value = u64::from_str_radix(digits, radix).ok()?;
    Some(Number::Int(value as i64))
}
