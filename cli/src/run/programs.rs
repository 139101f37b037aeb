//! The program of each rank: one for all, or those of a file in the form of `srun --multi-prog`.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::{Exit, Problem};

/// A command line for each rank.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Programs(Vec<Vec<String>>);

impl Programs {
    /// The same for all ranks.
    pub(crate) fn same(program: &[String], ranks: u32) -> Programs {
        Programs(vec![program.to_vec(); ranks as usize])
    }

    /// Reads a file. Each line has ranks and a command: `0 leader`, `1,3 worker -v`, `4-7 worker`;
    /// `*` means the ranks that no other line has. `%t` in an argument becomes the rank, `%o` its
    /// place among those of the line, `%%` a percent sign. `#` begins a comment.
    pub(crate) fn read(path: &Path, ranks: u32) -> Result<Programs> {
        let text = std::fs::read_to_string(path).with_context(|| {
            let path = path.display();
            format!("cannot read {path}; check the path given to --multi-prog")
        })?;
        Programs::parse(&text, ranks).map_err(|(line, what)| {
            let at = match line {
                0 => path.display().to_string(),
                _ => format!("{}, line {line}", path.display()),
            };
            Problem::new(
                Exit::Usage,
                format!("{at}: {what}"),
                "a line has ranks and a command, as in `0 leader`, `1,3-5 worker --rank %t` or `* worker`",
            )
            .into()
        })
    }

    /// What the file holds, or the line that is wrong, from 1, and what is wrong with it.
    fn parse(text: &str, ranks: u32) -> Result<Programs, (usize, String)> {
        let mut programs = vec![None; ranks as usize];
        let mut rest = None;
        for (n, line) in (1..).zip(text.lines()) {
            let wrong = |what: String| (n, what);
            let words = shlex::split(line)
                .ok_or_else(|| wrong("a quotation mark or backslash has no end".into()))?;
            let Some((of, command)) = words.split_first() else {
                continue;
            };
            if command.is_empty() {
                return Err(wrong(format!("no command after `{of}`")));
            }
            if of == "*" {
                if rest.replace(command.to_vec()).is_some() {
                    return Err(wrong("`*` stands twice".into()));
                }
                continue;
            }
            let mut place = 0;
            for part in of.split(',') {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                let number = |s: &str| s.parse::<u32>().ok().filter(|r| *r < ranks);
                let range = number(first).zip(number(last)).filter(|(a, b)| a <= b);
                let Some((first, last)) = range else {
                    let last = ranks - 1;
                    return Err(wrong(format!("`{part}` is no rank of 0 to {last}")));
                };
                for rank in first..=last {
                    let program = &mut programs[rank as usize];
                    if program.is_some() {
                        return Err(wrong(format!("rank {rank} has a command already")));
                    }
                    *program = Some(filled(command, rank, place));
                    place += 1;
                }
            }
        }
        let mut others = 0..;
        let all = (0..ranks).zip(programs).map(|(rank, program)| {
            let from_rest = || {
                let place = others.next()?;
                rest.as_ref().map(|command| filled(command, rank, place))
            };
            program
                .or_else(from_rest)
                .ok_or((0, format!("no line has rank {rank}")))
        });
        all.collect::<Result<_, _>>().map(Programs)
    }

    /// The command line of a rank.
    pub(crate) fn of(&self, rank: u32) -> &[String] {
        &self.0[rank as usize]
    }
}

/// A command with its rank's numbers.
fn filled(command: &[String], rank: u32, place: u32) -> Vec<String> {
    let fill = |word: &String| {
        let mut out = String::new();
        let mut chars = word.chars();
        while let Some(c) = chars.next() {
            match (c, chars.clone().next()) {
                ('%', Some('t')) => out += &rank.to_string(),
                ('%', Some('o')) => out += &place.to_string(),
                ('%', Some('%')) => out.push('%'),
                _ => {
                    out.push(c);
                    continue;
                }
            }
            chars.next();
        }
        out
    };
    command.iter().map(fill).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, ranks: u32) -> Result<Vec<String>, (usize, String)> {
        let programs = Programs::parse(text, ranks)?;
        Ok((0..ranks).map(|r| programs.of(r).join(" ")).collect())
    }

    #[test]
    fn each_rank_has_the_command_of_its_line() {
        let text =
            "# two kinds\n\n0   leader --as 'rank %t' 100%%\n3,1 worker %t %o\n* idle %o/%x%\n";
        assert_eq!(
            lines(text, 5).expect("good"),
            [
                "leader --as rank 0 100%",
                "worker 1 1",
                "idle 0/%x%",
                "worker 3 0",
                "idle 1/%x%"
            ]
        );
        assert_eq!(
            lines("0-2 a %o # all", 3).expect("good"),
            ["a 0", "a 1", "a 2"]
        );
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, line, what) in [
            ("0 a\n1-2 b\n2 c\n", 3, "rank 2 has a command already"),
            ("0-3 a\n", 1, "`0-3` is no rank of 0 to 2"),
            ("2-1 a\n", 1, "`2-1` is no rank of 0 to 2"),
            ("0 a\nx b\n", 2, "`x` is no rank of 0 to 2"),
            ("0,,1 a\n", 1, "`` is no rank of 0 to 2"),
            ("0-1 a\n2\n", 2, "no command after `2`"),
            ("* a\n* b\n", 2, "`*` stands twice"),
            ("0 'a\n", 1, "a quotation mark or backslash has no end"),
            ("0-1 a\n", 0, "no line has rank 2"),
            ("", 0, "no line has rank 0"),
        ] {
            let got = lines(text, 3).expect_err(text);
            assert_eq!(got, (line, what.to_owned()), "{text}");
        }
    }
}
