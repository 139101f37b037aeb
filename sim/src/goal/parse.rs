//! The text of a schedule, read.
//!
//! The grammar is that of LogGOPSim's `txt2bin.re`, and collectives (`coll all_reduce 8b`).
//! Comments, `}` and labels that come later are taken in more places than there; `tag`, `cpu` and
//! `nic` in any order.

use std::collections::BTreeMap;

use ringbell_onc_engines::program::collective_named;

use super::super::FileError;
use super::connections;
use super::needs::{circle, Need};
use super::schedule::{is_simulated, Op, Schedule, Work};

/// Most ranks and operations of a file.
const RANKS: u64 = 1 << 20;
const OPS: usize = 1 << 24;

/// The word of a collective, which GOAL does not have. Alone it is a label.
const COLLECTIVE: &str = "coll";

fn is_requires(token: Token<'_>) -> bool {
    matches!(token, Token::Word("requires" | "irequires"))
}

/// What an operation may be, in words.
const STATEMENT: &str = "`send`, `recv`, `calc`, `coll`, a label or `}`";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'t> {
    Word(&'t str),
    Digits(&'t str),
    Mark(char),
    EndOfLine,
    End,
}

/// A token, and the byte where it begins.
type Placed<'t> = (Token<'t>, usize);

impl Schedule {
    /// Reads a text in GOAL, or htsim's connections where it begins as they do (`Nodes`); `name` is
    /// what errors call it.
    ///
    /// # Errors
    /// [`FileError`]: what is wrong, and what was expected.
    pub fn parse(name: &str, text: &str) -> Result<Schedule, FileError> {
        if connections::is_connections(text) {
            return connections::parse(name, text);
        }
        let parser = Parser {
            name,
            text,
            at: 0,
            line: 1,
            ops: 0,
        };
        parser.schedule()
    }
}

/// Statements of a rank that name labels.
struct Requires<'t> {
    of: (&'t str, usize),
    other: (&'t str, usize),
    begin: bool,
}

struct Parser<'t> {
    name: &'t str,
    text: &'t str,
    at: usize,
    /// Of `at`, from 1 on.
    line: u32,
    /// How many operations there are so far.
    ops: usize,
}

impl<'t> Parser<'t> {
    fn error<T>(&self, at: usize, what: String) -> Result<T, FileError> {
        Err(FileError::at(self.name, self.text, at, what))
    }

    /// Something else is there than what was expected.
    fn unexpected<T>(&self, (token, at): Placed<'t>, expected: &str) -> Result<T, FileError> {
        let found = match token {
            Token::Word(text) | Token::Digits(text) => format!("`{text}`"),
            Token::Mark(mark) => format!("`{mark}`"),
            Token::EndOfLine => "the end of the line".into(),
            Token::End => "the end of the file".into(),
        };
        self.error(at, format!("{found}, expected {expected}"))
    }

    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Passes blanks and comments.
    ///
    /// # Errors
    /// A comment has no end.
    fn pass_blanks(&mut self) -> Result<(), FileError> {
        loop {
            let rest = self.rest();
            let blanks = rest.len() - rest.trim_start_matches([' ', '\t', '\r']).len();
            if blanks > 0 {
                self.at += blanks;
            } else if rest.starts_with("//") {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if rest.starts_with("/*") {
                let Some(end) = rest.find("*/") else {
                    let what = "this comment has no end, expected `*/`";
                    return self.error(self.at, what.into());
                };
                self.line += rest[..end].matches('\n').count() as u32;
                self.at += end + 2;
            } else {
                return Ok(());
            }
        }
    }

    fn next(&mut self) -> Result<Placed<'t>, FileError> {
        self.pass_blanks()?;
        let (rest, at) = (self.rest(), self.at);
        let end_of = |is: fn(char) -> bool| rest.find(|c| !is(c)).unwrap_or(rest.len());
        let token = match rest.chars().next() {
            None => Token::End,
            Some('\n') => {
                self.line += 1;
                Token::EndOfLine
            }
            Some('0'..='9') => Token::Digits(&rest[..end_of(|c| c.is_ascii_digit())]),
            Some(c) if c.is_ascii_alphabetic() => {
                Token::Word(&rest[..end_of(|c| c.is_ascii_alphanumeric() || c == '_')])
            }
            Some(c) => Token::Mark(c),
        };
        self.at += match token {
            Token::Word(text) | Token::Digits(text) => text.len(),
            Token::Mark(c) => c.len_utf8(),
            Token::EndOfLine => 1,
            Token::End => 0,
        };
        Ok((token, at))
    }

    /// The next token, which stays.
    fn peek(&mut self) -> Result<Placed<'t>, FileError> {
        let next = self.next()?;
        if next.0 == Token::EndOfLine {
            self.line -= 1;
        }
        self.at = next.1;
        Ok(next)
    }

    /// Passes line ends.
    fn next_statement(&mut self) -> Result<Placed<'t>, FileError> {
        loop {
            let next = self.next()?;
            if next.0 != Token::EndOfLine {
                return Ok(next);
            }
        }
    }

    fn expect(&mut self, token: Token<'_>, expected: &str) -> Result<(), FileError> {
        let next = self.next()?;
        match next.0 == token {
            true => Ok(()),
            false => self.unexpected(next, expected),
        }
    }

    /// A number below a limit.
    fn number(&mut self, what: &str, limit: u64) -> Result<u64, FileError> {
        let next = self.next()?;
        let Token::Digits(digits) = next.0 else {
            return self.unexpected(next, &format!("{what}, a number"));
        };
        match digits.parse() {
            Ok(n) if n < limit => Ok(n),
            _ => {
                let most = limit - 1;
                let what = format!("{what} is {digits}, expected 0 to {most}");
                self.error(next.1, what)
            }
        }
    }

    /// The same, or -1 for any.
    fn number_or_any(&mut self, what: &str, limit: u64) -> Result<Option<u64>, FileError> {
        if self.peek()?.0 != Token::Mark('-') {
            return self.number(what, limit).map(Some);
        }
        self.next()?;
        self.expect(
            Token::Digits("1"),
            &format!("{what}, a number or -1 for any"),
        )?;
        Ok(None)
    }

    fn schedule(mut self) -> Result<Schedule, FileError> {
        let first = self.next_statement()?;
        if first.0 != Token::Word("num_ranks") {
            return self.unexpected(first, "`num_ranks` and how many there are");
        }
        let at = self.peek()?.1;
        let count = self.number("num_ranks", RANKS + 1)?;
        if count == 0 {
            return self.error(at, format!("num_ranks is 0, expected 1 to {RANKS}"));
        }
        let mut ranks: Vec<Option<Vec<Op>>> = vec![None; count as usize];
        loop {
            let next = self.next_statement()?;
            match next.0 {
                Token::End => break,
                Token::Word("rank") => {}
                _ => return self.unexpected(next, "`rank`, its number and `{`"),
            }
            let at = self.peek()?.1;
            let rank = self.number("rank", count)? as usize;
            if ranks[rank].is_some() {
                return self.error(at, format!("rank {rank} is there twice, expected it once"));
            }
            self.expect(Token::Mark('{'), "`{`")?;
            ranks[rank] = Some(self.rank(count)?);
        }
        let ranks = ranks.into_iter().map(Option::unwrap_or_default);
        Ok(Schedule::of(ranks.collect()))
    }

    /// The operations of a rank, to its `}`.
    fn rank(&mut self, count: u64) -> Result<Vec<Op>, FileError> {
        let mut ops: Vec<Op> = Vec::new();
        let mut labels: BTreeMap<&str, u32> = BTreeMap::new();
        let mut requires = Vec::new();
        loop {
            let next = self.next_statement()?;
            let line = self.line;
            let (label, work) = match next.0 {
                Token::Mark('}') => break,
                Token::Word("rank" | "num_ranks") => return self.unexpected(next, STATEMENT),
                Token::Word(word @ ("send" | "recv" | "calc")) => (None, word),
                Token::Word(label) => {
                    let then = self.next()?;
                    match then.0 {
                        Token::Mark(':') => (Some((label, next.1)), self.kind()?),
                        Token::Word(_) if label == COLLECTIVE && !is_requires(then.0) => {
                            self.at = then.1;
                            (None, label)
                        }
                        Token::Word(word @ ("requires" | "irequires")) => {
                            let other = self.next()?;
                            let Token::Word(name) = other.0 else {
                                return self.unexpected(other, "a label");
                            };
                            self.end_of_statement("the end of the line")?;
                            requires.push(Requires {
                                of: (label, next.1),
                                other: (name, other.1),
                                begin: word == "irequires",
                            });
                            continue;
                        }
                        _ => {
                            let expected = "`:`, `requires` or `irequires` behind the label";
                            return self.unexpected(then, expected);
                        }
                    }
                }
                _ => return self.unexpected(next, STATEMENT),
            };
            let (work, cpu) = self.work(work, count)?;
            if let Some((label, at)) = label {
                if labels.insert(label, ops.len() as u32).is_some() {
                    let what =
                        format!("label {label} is there twice in its rank, expected it once");
                    return self.error(at, what);
                }
            }
            self.ops += 1;
            if self.ops > OPS {
                return self.error(
                    next.1,
                    format!("more than {OPS} operations, expected fewer"),
                );
            }
            ops.push(Op {
                label: label.map(|(label, _)| label.into()),
                line,
                work,
                cpu,
                needs: Vec::new(),
            });
        }
        self.join(&mut ops, &labels, &requires)?;
        Ok(ops)
    }

    /// What follows a label and its colon.
    fn kind(&mut self) -> Result<&'t str, FileError> {
        let next = self.next()?;
        match next.0 {
            Token::Word(word @ ("send" | "recv" | "calc" | COLLECTIVE)) => Ok(word),
            _ => self.unexpected(next, "`send`, `recv`, `calc` or `coll`"),
        }
    }

    /// What an operation does, and its processor.
    fn work(&mut self, kind: &str, count: u64) -> Result<(Work, u8), FileError> {
        if kind == "calc" {
            let ns = self.number("the time in nanoseconds", u64::MAX / 1_000_000)?;
            let [_, cpu] = self.options(["", "cpu"])?;
            return Ok((Work::Calc { ns }, cpu.unwrap_or(0) as u8));
        }
        if kind == COLLECTIVE {
            return self.collective();
        }
        let bytes = self.bytes()?;
        let word = match kind {
            "send" => "to",
            _ => "from",
        };
        self.expect(Token::Word(word), &format!("`{word}`"))?;
        if kind == "send" {
            let to = self.number("the rank", count)? as u32;
            let [tag, cpu] = self.options(["tag", "cpu"])?;
            let tag = tag.unwrap_or(0) as u32;
            return Ok((Work::Send { to, bytes, tag }, cpu.unwrap_or(0) as u8));
        }
        let from = self.number_or_any("the rank", count)?;
        let [tag, cpu] = self.options(["any tag", "cpu"])?;
        let tag = match tag {
            Some(ANY) => None,
            tag => Some(tag.unwrap_or(0) as u32),
        };
        let from = from.map(|rank| rank as u32);
        Ok((Work::Recv { from, bytes, tag }, cpu.unwrap_or(0) as u8))
    }

    /// A size in bytes.
    fn bytes(&mut self) -> Result<u64, FileError> {
        let bytes = self.number("the size", 1 << 48)?;
        self.expect(Token::Word("b"), "`b` behind the size")?;
        Ok(bytes)
    }

    /// A collective, behind its word.
    fn collective(&mut self) -> Result<(Work, u8), FileError> {
        let next = self.next()?;
        let kind = match next.0 {
            Token::Word(name) => collective_named(name),
            _ => None,
        };
        let Some(kind) = kind.filter(|kind| is_simulated(*kind)) else {
            let expected = "`all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`, `reduce`, \
                `all_to_all` or `barrier`";
            return self.unexpected(next, expected);
        };
        let bytes = self.bytes()?;
        let [_, cpu] = self.options(["", "cpu"])?;
        Ok((Work::Collective { kind, bytes }, cpu.unwrap_or(0) as u8))
    }

    /// What may follow an operation on its line, each once: a tag, a processor and a NIC.
    fn options(&mut self, [tag, cpu]: [&str; 2]) -> Result<[Option<u64>; 2], FileError> {
        let (mut values, mut has_nic) = ([None; 2], false);
        loop {
            let next = self.peek()?;
            let taken = match next.0 {
                Token::Word("tag") if !tag.is_empty() && values[0].is_none() => {
                    self.next()?;
                    let value = match tag {
                        "any tag" => self.number_or_any("the tag", 1 << 32)?.unwrap_or(ANY),
                        _ => self.number("the tag", 1 << 32)?,
                    };
                    (0, value)
                }
                Token::Word("cpu") if values[1].is_none() => {
                    self.next()?;
                    (1, self.number(cpu, 256)?)
                }
                Token::Word("nic") if !has_nic => {
                    has_nic = true;
                    self.next()?;
                    let at = self.peek()?.1;
                    let nic = self.number("nic", 256)?;
                    if nic > 0 {
                        let what = format!(
                            "nic {nic} is not simulated, as a rank has one NIC; expected nic 0"
                        );
                        return self.error(at, what);
                    }
                    continue;
                }
                _ => {
                    let expected = match tag {
                        "" => "`cpu`, `nic` or the end of the line",
                        _ => "`tag`, `cpu`, `nic` or the end of the line",
                    };
                    self.end_of_statement(expected)?;
                    return Ok(values);
                }
            };
            values[taken.0] = Some(taken.1);
        }
    }

    /// The end of a line, or what ends its rank.
    fn end_of_statement(&mut self, expected: &str) -> Result<(), FileError> {
        let next = self.peek()?;
        match next.0 {
            Token::EndOfLine | Token::End | Token::Mark('}') => Ok(()),
            _ => self.unexpected(next, expected),
        }
    }

    /// Gives each operation what it waits for.
    fn join(
        &self,
        ops: &mut [Op],
        labels: &BTreeMap<&str, u32>,
        requires: &[Requires<'_>],
    ) -> Result<(), FileError> {
        let find = |(label, at): (&str, usize)| match labels.get(label) {
            Some(op) => Ok(*op),
            None => {
                let what = format!("no operation of this rank has label {label}, expected one");
                self.error(at, what)
            }
        };
        for r in requires {
            let (of, op) = (find(r.of)?, find(r.other)?);
            let begin = r.begin;
            ops[of as usize].needs.push(Need { op, begin });
        }
        let Some(circle) = circle(ops.len(), |i| &ops[i].needs) else {
            return Ok(());
        };
        let named = |i: &u32| {
            let op = &ops[*i as usize];
            let label = op.label.as_deref().unwrap_or_default();
            format!("{label} (line {})", op.line)
        };
        let names: Vec<_> = circle.iter().chain(&circle[..1]).map(named).collect();
        let is_of = |r: &&Requires<'_>| labels.get(r.of.0) == circle.first();
        let at = requires.iter().find(is_of).map_or(0, |r| r.of.1);
        let what = names.join(" requires ");
        self.error(at, format!("{what}, expected no circle"))
    }
}

/// A tag that stands for any; beyond all others.
const ANY: u64 = u64::MAX;
