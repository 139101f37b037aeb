//! Programs of many ranks: the steps of a few of them, and what they take.
//!
//! Table and proof need the programs of all ranks. Of 4,096 by pairwise exchanges these have 67
//! million steps, so nothing here is made but for the ranks that are shown, and for those that
//! need the most memory.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use ringbell::parts::onc_engines::program::{self, Limits, Program};
use serde::Serialize;

use super::asked::{
    family, not_run, order, plan_lines, planned, refused, shown, title, Args, Head, Planned,
    TABLE_RANKS,
};
use crate::report::size_text;
use crate::{files, stdio, Exit, Problem};

/// Steps shown of the beginning of a longer program, and of its end.
const FIRST: usize = 12;
const LAST: usize = 4;

/// The JSON object: a part of what fewer ranks have.
#[derive(Serialize)]
struct Json {
    #[serde(flatten)]
    head: Head,
    scratch_chunks: u32,
    plans: Vec<Planned>,
}

/// Prints the programs of the ranks that were asked for.
pub(super) fn run(args: &Args) -> Result<Exit> {
    let ranks = args.ranks;
    let kind = args
        .collective
        .ok_or_else(|| refused("no collective was given".into()))?;
    for (given, option) in [
        (args.svg.is_some(), "--svg"),
        (args.goal, "--goal"),
        (args.chakra.is_some(), "--chakra"),
        (args.msccl, "--msccl"),
    ] {
        if given {
            let what = format!("{option} of {ranks} ranks needs the programs of all");
            let hint = format!("give at most {TABLE_RANKS} ranks");
            return Err(Problem::new(Exit::Usage, what, hint).into());
        }
    }
    if let Some(rank) = shown(args).iter().find(|r| **r >= ranks) {
        let what = format!("--rank {rank} of {ranks} ranks");
        let hint = format!("ranks count from 0 to {}", ranks - 1);
        return Err(Problem::new(Exit::Usage, what, hint).into());
    }
    let family = family(args, kind)?;
    let programs = shown(args).iter().map(|rank| family.program(*rank));
    let programs = programs.collect::<Result<Vec<_>, _>>();
    let programs = programs.map_err(|error| refused(error.to_string()))?;
    if programs[0].is_direct() {
        let what = format!("ranks of one host run `direct` up to {TABLE_RANKS} ranks");
        let hint = "leave out --transport local and --algo direct: more ranks exchange messages";
        return Err(Problem::new(Exit::Usage, what, hint).into());
    }
    let mut most = 0;
    let runs = family.check_heaviest(&Limits::default(), |p| most = most.max(p.scratch_chunks));
    runs.map_err(|error| not_run(&error))?;
    if args.text {
        stdio::out(program::format(&programs))?;
        return Ok(Exit::Ok);
    }
    let plans = programs.iter().map(|p| planned(args, p));
    let plans = plans.collect::<Result<Vec<_>>>()?;
    match args.json.as_deref() {
        None => stdio::out(text(&programs, &plans, most, args))?,
        Some(path) => {
            let p = &programs[0];
            let json = Json {
                head: Head::of(p, p.order, args.size),
                scratch_chunks: most,
                plans,
            };
            let json = serde_json::to_string_pretty(&json)
                .context("cannot express the programs as JSON")?;
            files::write_json(path, json)?;
        }
    }
    Ok(Exit::Ok)
}

fn text(programs: &[Program], plans: &[Planned], most: u32, args: &Args) -> String {
    let p = &programs[0];
    let mut out = title(p) + "\n\n";
    let mut line = |name: &str, text: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "  {name:<11} {text}");
    };
    line("order", order(p).into());
    let chunks = format!("{} a block of {}", p.block_chunks, size_text(args.size));
    line("chunks", chunks);
    for (k, plan) in plans.iter().enumerate() {
        let Planned {
            rank,
            messages,
            bytes_sent,
            ..
        } = plan;
        let sent = size_text(*bytes_sent);
        let name = if k == 0 { "messages" } else { "" };
        line(
            name,
            format!("{messages} from rank {rank}, which sends {sent} bytes"),
        );
    }
    line("NIC memory", format!("{most} chunks of a rank at most"));
    plan_lines(plans, &mut line);
    line(
        "not shown",
        format!(
            "table and proof, which need all ranks' programs: give at most {TABLE_RANKS} ranks. Tests \
             prove all algorithms of up to 64 ranks, and samples above"
        ),
    );
    for p in programs {
        let text = program::format(std::slice::from_ref(p));
        let steps = text.lines().skip_while(|l| !l.starts_with("rank "));
        let steps: Vec<&str> = steps.collect();
        // The first line names the rank.
        let (first, last) = (FIRST + 1, steps.len().saturating_sub(LAST));
        out.push('\n');
        for (k, step) in steps.iter().enumerate() {
            match k {
                _ if k < first || k >= last => out.push_str(step),
                _ if k == first => {
                    let _ = write!(out, "... {} steps more: --text prints them", last - first);
                }
                _ => continue,
            }
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::args;
    use super::*;

    #[test]
    fn of_many_ranks_the_ones_asked_for_are_shown_with_their_plans() {
        let args = args(&[
            "all-reduce",
            "-R",
            "4096",
            "--rank",
            "4095",
            "--size",
            "64K",
        ]);
        let family = family(&args, args.collective.unwrap()).unwrap();
        let programs = [family.program(4095).unwrap()];
        let plans = [planned(&args, &programs[0]).unwrap()];
        let text = text(&programs, &plans, 7, &args);
        for part in [
            "all-reduce, pairwise, 4096 ranks\n",
            "8190 from rank 4095, which sends 131040 bytes\n",
            "7 chunks of a rank at most\n",
            "rank 4095: 16380 steps, ",
            "\nrank 4095\n0: input[4094] -> net 4094\n",
            "\n... 16364 steps more: --text prints them\n",
            "\n8191: net 4094 -> output[4094]\n",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let all = text.lines().skip_while(|l| !l.starts_with("rank "));
        assert_eq!(all.count(), 1 + FIRST + 1 + LAST);
    }

    #[test]
    fn a_short_program_is_shown_whole() {
        let args = args(&["broadcast", "-R", "300", "--root", "7", "--algo", "chain"]);
        let family = family(&args, args.collective.unwrap()).unwrap();
        let programs = [family.program(0).unwrap()];
        let plans = [planned(&args, &programs[0]).unwrap()];
        let text = text(&programs, &plans, 0, &args);
        assert!(
            text.ends_with("\nrank 0\n293: net 299 -> output[0], net 1\n"),
            "{text}"
        );
    }
}
