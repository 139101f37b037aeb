//! What kernels print: `vprintf` and `__assertfail`, functions of the system that `printf` and
//! `assert` of CUDA call.
//!
//! Arguments lie one behind the other, each aligned to its size: 4 bytes, or 8 of doubles, `l`,
//! `ll` and pointers.

use std::io::Write as _;

use crate::memory::Output;

/// The standard output of the process.
pub(super) struct StandardOutput;

impl Output for StandardOutput {
    fn print(&self, text: &[u8]) {
        let mut out = std::io::stdout().lock();
        // A closed pipe is no reason to end a launch. A host in C would not flush it at its end.
        let _ = out.write_all(text).and_then(|()| out.flush());
    }
}

/// Reads 1, 4 or 8 bytes; the address is the error where the thread may not read.
pub(super) type Read<'a> = &'a dyn Fn(u64, u64) -> Result<u64, u64>;

/// Longest text of one call; what is beyond is cut off.
const MOST: usize = 1 << 16;

/// Bytes up to the first 0.
pub(super) fn string(read: Read<'_>, at: u64) -> Result<Vec<u8>, u64> {
    let mut out = Vec::new();
    while out.len() < MOST {
        match read(at + out.len() as u64, 1)? {
            0 => break,
            byte => out.push(byte as u8),
        }
    }
    Ok(out)
}

/// `%[flags][width][.precision][size]conversion`.
#[derive(Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zeros: bool,
    width: usize,
    precision: Option<usize>,
    /// `l`, `ll`: an integer of 8 bytes.
    long: bool,
    /// `h` and `hh`: its low 16 or 8 bits.
    short: u32,
}

/// The arguments of a call.
struct Arguments<'a> {
    read: Read<'a>,
    at: u64,
    taken: u32,
}

impl Arguments<'_> {
    fn next(&mut self, bytes: u64) -> Result<u64, u64> {
        self.at = self.at.next_multiple_of(bytes);
        let v = (self.read)(self.at, bytes)?;
        self.at += bytes;
        self.taken += 1;
        Ok(v)
    }
}

/// The text, and how many arguments it took.
pub(super) fn format(read: Read<'_>, format: u64, list: u64) -> Result<(Vec<u8>, u32), u64> {
    let format = string(read, format)?;
    let mut arguments = Arguments {
        read,
        at: list,
        taken: 0,
    };
    let (mut out, mut rest) = (Vec::new(), &format[..]);
    while let Some((first, behind)) = rest.split_first() {
        if *first != b'%' {
            out.push(*first);
            rest = behind;
            continue;
        }
        let (mut spec, mut tail) = (Spec::default(), behind);
        spec.flags(&mut tail);
        if let Some(v) = number(&mut tail, &mut arguments)? {
            spec.left |= v < 0;
            spec.width = (v.unsigned_abs() as usize).min(MOST);
        }
        if let Some(b'.') = tail.first() {
            tail = &tail[1..];
            let v = number(&mut tail, &mut arguments)?.unwrap_or(0);
            spec.precision = usize::try_from(v).ok().map(|v| v.min(MOST));
        }
        spec.size(&mut tail);
        let Some((conversion, behind)) = tail.split_first() else {
            out.extend(rest);
            break;
        };
        match spec.convert(*conversion, &mut arguments)? {
            Some(text) => {
                out.extend(text);
                rest = behind;
            }
            // Not a conversion: as it is written.
            None => {
                out.push(b'%');
                rest = &rest[1..];
            }
        }
        if out.len() > MOST {
            break;
        }
    }
    out.truncate(MOST);
    Ok((out, arguments.taken))
}

/// Digits, or `*` for an argument.
fn number(tail: &mut &[u8], arguments: &mut Arguments<'_>) -> Result<Option<i32>, u64> {
    if let Some(b'*') = tail.first() {
        *tail = &tail[1..];
        return Ok(Some(arguments.next(4)? as i32));
    }
    let mut v = None;
    while let Some(digit @ b'0'..=b'9') = tail.first() {
        let digit = i32::from(digit - b'0');
        v = Some(v.unwrap_or(0i32).saturating_mul(10).saturating_add(digit));
        *tail = &tail[1..];
    }
    Ok(v)
}

impl Spec {
    fn flags(&mut self, tail: &mut &[u8]) {
        while let Some((flag, behind)) = tail.split_first() {
            match flag {
                b'-' => self.left = true,
                b'+' => self.plus = true,
                b' ' => self.space = true,
                b'#' => self.alternate = true,
                b'0' => self.zeros = true,
                _ => break,
            }
            *tail = behind;
        }
    }

    fn size(&mut self, tail: &mut &[u8]) {
        while let Some((size, behind)) = tail.split_first() {
            match size {
                b'l' | b'z' | b'j' | b't' => self.long = true,
                b'h' => self.short += 1,
                _ => break,
            }
            *tail = behind;
        }
    }

    fn convert(
        &self,
        conversion: u8,
        arguments: &mut Arguments<'_>,
    ) -> Result<Option<Vec<u8>>, u64> {
        let bytes = if self.long { 8 } else { 4 };
        Ok(Some(match conversion {
            b'%' => b"%".to_vec(),
            b'c' => self.pad(vec![arguments.next(4)? as u8]),
            b's' => {
                let at = arguments.next(8)?;
                let mut text = string(arguments.read, at)?;
                text.truncate(self.precision.unwrap_or(MOST));
                self.pad(text)
            }
            b'd' | b'i' => {
                let v = arguments.next(bytes)?;
                let v = match (self.long, self.short) {
                    (true, _) => v as i64,
                    (_, 0) => i64::from(v as i32),
                    (_, 1) => i64::from(v as i16),
                    _ => i64::from(v as i8),
                };
                let sign = self.sign(v < 0);
                self.integer(sign, v.unsigned_abs().to_string())
            }
            b'u' | b'o' | b'x' | b'X' => {
                let v = arguments.next(bytes)?;
                let v = match (self.long, self.short) {
                    (true, _) | (_, 0) => v,
                    (_, 1) => v & 0xffff,
                    _ => v & 0xff,
                };
                let prefix = if self.alternate && v != 0 {
                    conversion
                } else {
                    0
                };
                let (prefix, digits) = match conversion {
                    b'o' => (if prefix == 0 { "" } else { "0" }, format!("{v:o}")),
                    b'x' => (if prefix == 0 { "" } else { "0x" }, format!("{v:x}")),
                    b'X' => (if prefix == 0 { "" } else { "0X" }, format!("{v:X}")),
                    _ => ("", v.to_string()),
                };
                self.integer(prefix, digits)
            }
            b'p' => self.pad(format!("{:#x}", arguments.next(8)?).into_bytes()),
            b'e' | b'E' | b'f' | b'F' | b'g' | b'G' | b'a' | b'A' => {
                let v = f64::from_bits(arguments.next(8)?);
                self.float(v, conversion)
            }
            _ => return Ok(None),
        }))
    }

    fn sign(&self, negative: bool) -> &'static str {
        match (negative, self.plus, self.space) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (.., true) => " ",
            _ => "",
        }
    }

    fn pad(&self, text: Vec<u8>) -> Vec<u8> {
        let spaces = vec![b' '; self.width.saturating_sub(text.len())];
        if self.left {
            [text, spaces].concat()
        } else {
            [spaces, text].concat()
        }
    }

    /// Zeros of the width go between sign and digits.
    fn zeros(&self, sign: &str, digits: &str) -> Vec<u8> {
        let mut zeros = 0;
        if self.zeros && !self.left {
            zeros = self.width.saturating_sub(sign.len() + digits.len());
        }
        self.pad(format!("{sign}{}{digits}", "0".repeat(zeros)).into_bytes())
    }

    fn integer(&self, sign: &str, digits: String) -> Vec<u8> {
        match self.precision {
            None => self.zeros(sign, &digits),
            Some(0) if digits == "0" => self.pad(sign.as_bytes().to_vec()),
            Some(n) => self.pad(format!("{sign}{digits:0>n$}").into_bytes()),
        }
    }

    fn float(&self, v: f64, conversion: u8) -> Vec<u8> {
        let sign = self.sign(v.is_sign_negative());
        let (v, upper) = (v.abs(), conversion.is_ascii_uppercase());
        let case = |s: String| if upper { s.to_uppercase() } else { s };
        if !v.is_finite() {
            let name = if v.is_nan() { "nan" } else { "inf" };
            return self.pad(case(format!("{sign}{name}")).into_bytes());
        }
        let n = self.precision.unwrap_or(6);
        match conversion.to_ascii_lowercase() {
            b'f' => self.zeros(sign, &format!("{v:.n$}")),
            b'e' => self.zeros(sign, &case(scientific(v, n))),
            b'g' => self.zeros(sign, &case(shorter(v, n.max(1), self.alternate))),
            _ => {
                let (prefix, digits) = (
                    case(format!("{sign}0x")),
                    case(hexadecimal(v, self.precision)),
                );
                self.zeros(&prefix, &digits)
            }
        }
    }
}

/// `%e`: the exponent has a sign and two digits at least.
fn scientific(v: f64, n: usize) -> String {
    let text = format!("{v:.n$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// `%g`: `n` digits, as `%e` or `%f`, without zeros at the end.
fn shorter(v: f64, n: usize, alternate: bool) -> String {
    let text = scientific(v, n - 1);
    let exponent: i32 = text
        .split_once('e')
        .map_or(0, |(_, e)| e.parse().unwrap_or(0));
    let trim = |s: &str| match s.contains('.') && !alternate {
        true => s.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => s.to_owned(),
    };
    if exponent < -4 || exponent >= n as i32 {
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
        return format!("{}e{exponent}", trim(digits));
    }
    let behind = (n as i32 - 1 - exponent) as usize;
    trim(&format!("{v:.behind$}"))
}

/// `%a`, behind `0x`.
fn hexadecimal(v: f64, precision: Option<usize>) -> String {
    let bits = v.to_bits();
    let (exponent, fraction) = ((bits >> 52) as i32, bits & ((1 << 52) - 1));
    let lead = u64::from(exponent != 0);
    let exponent = match (exponent, fraction) {
        (0, 0) => 0,
        (0, _) => -1022,
        (e, _) => e - 1023,
    };
    let mut digits = lead << 52 | fraction;
    let mut n = 13;
    if let Some(p) = precision.filter(|p| *p < 13) {
        // To the nearest, of two the even one.
        let drop = 4 * (13 - p);
        let (kept, rest, half) = (digits >> drop, digits & ((1 << drop) - 1), 1 << (drop - 1));
        let up = rest > half || rest == half && kept & 1 == 1;
        (digits, n) = (kept + u64::from(up), p);
    }
    let (whole, rest) = (digits >> (4 * n), digits & ((1 << (4 * n)) - 1));
    let mut rest = if n == 0 {
        String::new()
    } else {
        format!("{rest:0n$x}")
    };
    match precision {
        None => rest = rest.trim_end_matches('0').to_owned(),
        Some(p) => rest.extend(std::iter::repeat_n('0', p.saturating_sub(n))),
    }
    let point = if rest.is_empty() { "" } else { "." };
    format!("{whole}{point}{rest}p{exponent:+}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A format and its arguments behind it, at address 0; a string lies at 512.
    fn print(text: &str, arguments: &[u64]) -> String {
        let mut memory = text.as_bytes().to_vec();
        memory.resize(256, 0);
        for v in arguments {
            memory.extend(v.to_le_bytes());
        }
        memory.resize(512, 0);
        memory.extend(b"word\0");
        let read = |at: u64, n: u64| {
            let bytes = memory.get(at as usize..(at + n) as usize).ok_or(at)?;
            let mut word = [0; 8];
            word[..n as usize].copy_from_slice(bytes);
            Ok(u64::from_le_bytes(word))
        };
        let (out, _) = format(&read, 0, 256).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn conversions_are_those_of_c() {
        let f = f64::to_bits;
        let cases: &[(&str, &[u64], &str)] = &[
            ("plain 100%%\n", &[], "plain 100%\n"),
            (
                "%d|%5d|%-5d|%05d|%+d",
                &[0xffff_fff9 | 42 << 32, 42 | 42 << 32, 7],
                "-7|   42|42   |00042|+7",
            ),
            (
                "%u %x %#X %o",
                &[0xffff_ffff | 255 << 32, 255 | 8 << 32],
                "4294967295 ff 0XFF 10",
            ),
            (
                "%ld %llu %lx",
                &[1 << 63, u64::MAX, 16],
                "-9223372036854775808 18446744073709551615 10",
            ),
            ("%d %ld", &[1, 2], "1 2"),
            ("%hhd %hd", &[0x180 | 0x1_8000 << 32], "-128 -32768"),
            (
                "%.3d|%8.3d|%.0d|%*d",
                &[5 | 5 << 32, 6 << 32, 7],
                "005|     005||     7",
            ),
            ("%c%c", &[65 | 66 << 32], "AB"),
            ("%s|%6s|%-6s|%.2s", &[512; 4], "word|  word|word  |wo"),
            ("%p", &[0xabc], "0xabc"),
            (
                "%f %.2f %10.3f|%-8.1f|%08.2f",
                &[f(1.5), f(-2.675), f(3.0), f(0.25), f(-1.0)],
                "1.500000 -2.67      3.000|0.2     |-0001.00",
            ),
            (
                "%e %.2E",
                &[f(12345.678), f(0.00012)],
                "1.234568e+04 1.20E-04",
            ),
            (
                "%g %g %g %g %#g",
                &[f(0.0001), f(1e-5), f(123456.0), f(1234567.0), f(1.0)],
                "0.0001 1e-05 123456 1.23457e+06 1.00000",
            ),
            (
                "%a %.1a %A",
                &[f(1.5), f(1.96875), f(0.0)],
                "0x1.8p+0 0x2.0p+0 0X0P+0",
            ),
            (
                "%f %F %5g",
                &[f(f64::NAN), f(f64::INFINITY), f(f64::NEG_INFINITY)],
                "nan INF  -inf",
            ),
            ("%y %", &[], "%y %"),
        ];
        for (text, arguments, want) in cases {
            assert_eq!(&print(text, arguments), want, "{text}");
        }
    }

    #[test]
    fn a_string_outside_of_memory_is_an_error() {
        let read = |at: u64, _: u64| {
            if at < 3 {
                Ok(u64::from(b"%s\0"[at as usize]))
            } else {
                Err(at)
            }
        };
        assert_eq!(format(&read, 0, 64).unwrap_err(), 64);
    }
}
