//! `ringbell explain`: the steps of a collective, in the form of FpgaNIC's Table 8.

mod asked;
mod draw;
mod goal;
mod one_rank;

use std::fmt::Write as _;

use anyhow::{Context, Result};
use ringbell::abi::{Algorithm, CollectiveKind};
use ringbell::parts::onc_engines::program::{
    self, check, pretty, InPlace, Limits, Program, Proof, Table, UserProgram,
};
use serde::Serialize;

pub(crate) use asked::Args;

use asked::{
    family, order, plan_lines, planned, refused, sent, shown, title, Head, Planned, TABLE_RANKS,
};

use super::{files, stdio, Exit, Problem};
use crate::report::size_text;

/// The whole explanation.
struct Explained {
    programs: Vec<Program>,
    proof: Proof,
    table: Table,
    /// What a rank's plan takes, of the ranks that were asked for; none of a program of one's own.
    plans: Vec<Planned>,
}

/// The JSON object.
#[derive(Serialize)]
struct Json {
    #[serde(flatten)]
    head: Head,
    /// Whether source and destination may be one; null where the collective has no such form.
    in_place: Option<bool>,
    messages: usize,
    messages_per_rank: usize,
    /// The most that a rank sends, for blocks of `block_bytes`.
    bytes_per_rank: u64,
    /// Slots of NIC memory that a rank uses.
    scratch_chunks: u32,
    /// Identifies the programs.
    hash: String,
    /// What a NIC needs to run the program of each rank that was asked for, or of rank 0.
    plans: Vec<Planned>,
    /// By rank and column, in the notation of the paper.
    table: Vec<Vec<String>>,
    /// In the form that --program reads.
    text: String,
}

/// Prints the table.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    if args.program.is_none() && args.ranks > TABLE_RANKS {
        return one_rank::run(args);
    }
    let explained = explain(args)?;
    if let Some(rank) = args
        .rank
        .iter()
        .find(|r| **r as usize >= explained.programs.len())
    {
        return Err(Problem::new(
            Exit::Usage,
            format!("--rank {rank} of {} ranks", explained.programs.len()),
            format!("ranks count from 0 to {}", explained.programs.len() - 1),
        )
        .into());
    }
    if let Some(path) = &args.svg {
        let svg = draw::svg(&explained.table, &title(&explained.programs[0]))?;
        files::write(path, svg, "--svg")?;
    }
    if args.text {
        stdio::out(program::format(&explained.programs))?;
        return Ok(Exit::Ok);
    }
    if args.goal {
        let schedule = goal::schedule(&explained.programs, args.size)?;
        stdio::out(schedule.to_string())?;
        return Ok(Exit::Ok);
    }
    if let Some(name) = &args.chakra {
        return goal::write_chakra(&explained.programs, args.size, name);
    }
    if args.msccl {
        let text = program::msccl(&explained.programs).map_err(|e| {
            let advice = "give another collective or algorithm, as all-reduce --algo ring";
            Problem::new(Exit::Usage, e.to_string(), advice)
        })?;
        stdio::out(text)?;
        return Ok(Exit::Ok);
    }
    match args.json.as_deref() {
        None => stdio::out(text(&explained, args))?,
        Some(path) => {
            let json = serde_json::to_string_pretty(&json(explained, args.size))
                .context("cannot express the table as JSON")?;
            files::write_json(path, json)?;
        }
    }
    Ok(Exit::Ok)
}

fn explain(args: &Args) -> Result<Explained> {
    let limits = Limits::default();
    let (programs, proof, family) = match (&args.program, args.collective) {
        (Some(path), _) => {
            let text = std::fs::read_to_string(path).with_context(|| {
                let what = format!("cannot read {}", path.display());
                Problem::new(Exit::Usage, what, "check the path given to --program")
            })?;
            let user = UserProgram::load(&text, &limits).map_err(|error| {
                Problem::new(
                    Exit::Failed,
                    format!("{}: {error}", path.display()),
                    "docs/collectives.md explains the form and what the checker wants",
                )
            })?;
            (user.programs().to_vec(), user.proof().clone(), None)
        }
        (None, Some(kind)) => {
            let family = family(args, kind)?;
            let programs = (0..args.ranks).map(|rank| family.program(rank));
            let programs = programs.collect::<Result<Vec<_>, _>>();
            let programs = programs.map_err(|error| refused(error.to_string()))?;
            let proof = check(&programs, &limits).context("the generated program is refused")?;
            (programs, proof, Some(family))
        }
        (None, None) => return Err(refused("no collective was given".into()).into()),
    };
    let table = Table::new(&programs, &limits).context("the program has no table")?;
    let of = |rank: &u32| programs.get(*rank as usize);
    let plans = match &family {
        // One pass over memory has no plan.
        Some(_) if !programs[0].is_direct() => {
            let shown = shown(args).iter().filter_map(of);
            shown.map(|p| planned(args, p)).collect::<Result<_>>()?
        }
        _ => Vec::new(),
    };
    Ok(Explained {
        programs,
        proof,
        table,
        plans,
    })
}

/// The most bytes that one of them sends.
fn most_sent(programs: &[Program], block: u64) -> u64 {
    programs.iter().map(|p| sent(p, block)).max().unwrap_or(0)
}

fn text(e: &Explained, args: &Args) -> String {
    let (p, proof) = (&e.programs[0], &e.proof);
    let mut out = title(p) + "\n\n";
    let mut line = |name: &str, text: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "  {name:<11} {text}");
    };
    line("order", order(p).into());
    line(
        "chunks",
        format!("{} a block of {}", p.block_chunks, size_text(args.size)),
    );
    line(
        "messages",
        if p.is_direct() {
            "none: ranks of one host read and write each other's memory in one pass, between two barriers".into()
        } else {
            format!(
                "{}, at most {} from one rank, which sends {} bytes at most",
                proof.messages,
                proof.messages_per_rank,
                size_text(most_sent(&e.programs, args.size))
            )
        },
    );
    if args.transport == "mesh" && p.kind == CollectiveKind::Broadcast && p.algo == Algorithm::Flat
    {
        line(
            "in transit",
            format!(
                "one packet for {} messages: NICs on the way copy what the root sends, and each byte \
                 crosses each wire of its tree once (`ringbell routes TOPOLOGY --tree NODE`), where \
                 messages are longer than 32K",
                p.ranks - 1
            ),
        );
    }
    if args.transport == "mesh" && p.kind == CollectiveKind::Reduce && p.algo == Algorithm::Tree {
        line(
            "in transit",
            format!(
                "one packet up each wire of the root's tree in place of {} messages, where blocks are \
                 longer than 32K: NICs on the way combine what the ranks send, own elements first, \
                 then by port. Without an algorithm for integers, minimum and maximum alone, whose \
                 bits no order changes",
                p.ranks - 1
            ),
        );
    }
    line(
        "NIC memory",
        format!("{} chunks of a rank at most", proof.scratch_chunks),
    );
    line(
        "in place",
        match &proof.in_place {
            InPlace::Safe => "yes".into(),
            InPlace::None => "the collective has no such form".into(),
            InPlace::Unsafe(why) => format!("no: {why}"),
        },
    );
    plan_lines(&e.plans, &mut line);
    line(
        "proved",
        format!(
            "result, order, messages matched, no deadlock, no overwritten message; hash {:#018x}",
            proof.hash
        ),
    );
    out.push('\n');
    out.push_str(&grid(e, &args.rank));
    out.push_str(
        "\ninput/output: G GPU memory, E network, M NIC memory, S stream; subscript: chunk; superscript: contributions\n",
    );
    out
}

/// The table, in columns.
fn grid(e: &Explained, only: &[u32]) -> String {
    let shown = |rank: usize| only.is_empty() || only.contains(&(rank as u32));
    let mut rows = vec![vec![String::new()]];
    rows[0].extend((0..e.table.columns()).map(|t| pretty(&format!("t_{{{t}}}"))));
    for (rank, cells) in e.table.rows.iter().enumerate().filter(|(r, _)| shown(*r)) {
        let mut row = vec![format!("NIC {rank}")];
        row.extend(cells.iter().map(|c| pretty(&c.to_string())));
        rows.push(row);
    }
    let width = |column: usize| {
        let cells = rows.iter().map(|r| r[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths);
        let padded: Vec<String> = cells.map(|(c, w)| format!("{c:<w$}")).collect();
        out.push_str(padded.join("  ").trim_end());
        out.push('\n');
    }
    out
}

fn json(e: Explained, block_bytes: u64) -> Json {
    let (p, proof) = (&e.programs[0], &e.proof);
    let row = |cells: &Vec<program::Cell>| cells.iter().map(ToString::to_string).collect();
    Json {
        head: Head::of(p, proof.order, block_bytes),
        in_place: match proof.in_place {
            InPlace::Safe => Some(true),
            InPlace::Unsafe(_) => Some(false),
            InPlace::None => None,
        },
        messages: proof.messages,
        messages_per_rank: proof.messages_per_rank,
        bytes_per_rank: most_sent(&e.programs, block_bytes),
        scratch_chunks: proof.scratch_chunks,
        hash: format!("{:#018x}", proof.hash),
        table: e.table.rows.iter().map(row).collect(),
        text: program::format(&e.programs),
        plans: e.plans,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use ringbell::parts::onc_engines::program::Order;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    pub(super) fn args(line: &[&str]) -> Args {
        let line = ["explain"].iter().chain(line);
        Cli::try_parse_from(line).map(|c| c.args).unwrap()
    }

    #[test]
    fn the_ring_is_explained_as_the_paper_does() {
        let args = args(&["all-reduce", "-R", "4", "--algo", "ring", "--size", "1M"]);
        let text = text(&explain(&args).unwrap(), &args);
        for part in [
            "all-reduce, ring, 4 ranks\n",
            "24, at most 6 from one rank, which sends 1536K bytes at most",
            "NIC 0  G₀¹/-  (G₃¹ + E₃¹)/E₀¹",
            "-/G₂⁴\n",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn the_default_depends_on_size_and_transport() {
        let algo = |line: &[&str]| explain(&args(line)).unwrap().programs[0].algo;
        assert_eq!(
            algo(&["allreduce", "--size", "64"]),
            Algorithm::AllGatherReduce
        );
        assert_eq!(algo(&["allreduce"]), Algorithm::Ring);
        let gather = ["allgather", "-R", "4", "--size", "1M", "--host-ranks"];
        for (host_ranks, chosen) in [("1", Algorithm::Ring), ("2", Algorithm::Hierarchical)] {
            assert_eq!(algo(&[&gather[..], &[host_ranks]].concat()), chosen);
        }
        assert_eq!(
            algo(&["allreduce", "--transport", "local"]),
            Algorithm::Direct
        );
    }

    #[test]
    fn ranks_of_hosts_are_explained_and_refused_where_they_do_not_divide_the_ranks() {
        let line = [
            "allreduce",
            "-R",
            "6",
            "--algo",
            "hierarchical",
            "--host-ranks",
        ];
        let of = |host_ranks| explain(&args(&[&line[..], &[host_ranks]].concat()));
        let e = of("2").unwrap();
        assert_eq!((e.proof.order, e.proof.scratch_chunks), (Order::Other, 0));
        // One to the host and back, and four to the next host.
        assert_eq!(e.proof.messages_per_rank, 6);
        assert_eq!(of("1").unwrap().proof.order, Order::Ring);
        let error = of("4").err().unwrap().to_string();
        assert!(error.contains("6 ranks cannot be 4 on each"), "{error}");
        let unequal = of("3,1,2").unwrap();
        assert_eq!(unequal.proof.order, Order::Other);
        let error = of("3,2").err().unwrap().to_string();
        assert!(error.contains("have 5 in all, and there are 6"), "{error}");
        let error = of("0").err().unwrap().to_string();
        assert!(error.contains("not known"), "{error}");
    }

    #[test]
    fn one_rank_only_and_json_of_all() {
        let args = args(&["gather", "--root", "2", "--rank", "1", "--algo", "tree"]);
        let e = explain(&args).unwrap();
        let text = text(&e, &args);
        assert!(text.contains("gather, tree, 4 ranks, root 2"));
        assert!(text.contains("NIC 1") && !text.contains("NIC 0"));
        let json = serde_json::to_value(json(e, 4096)).unwrap();
        assert_eq!(json["root"], 2);
        assert_eq!(json["bytes_per_rank"], 8192);
        assert_eq!(json["table"].as_array().unwrap().len(), 4);
    }

    #[test]
    fn the_plan_of_a_rank_is_measured() {
        let args = args(&["all-reduce", "-R", "40", "--rank", "3", "--rank", "39"]);
        let e = explain(&args).unwrap();
        let of = |k: usize| (e.plans[k].rank, e.plans[k].steps, e.plans[k].messages);
        // A ring of 40: 39 steps to reduce and as many to gather, and the first message.
        assert_eq!((of(0), of(1)), ((3, 79, 78), (39, 79, 78)));
        assert!(e.plans[0].bytes > 79 * 40 && e.plans[0].make_us > 0.0);
        assert!(text(&e, &args).contains("rank 39: 79 steps, "));
    }

    #[test]
    fn wrong_arguments_list_the_valid_ones() {
        let parse = |line: &[&str]| Cli::try_parse_from(["explain"].iter().chain(line));
        let error = |line: &[&str]| parse(line).err().unwrap().to_string();
        assert!(error(&["send"]).contains("the collectives are broadcast, reduce, scatter"));
        assert!(error(&["barrier", "--algo", "x"]).contains("the algorithms are auto, direct"));
        let refused = explain(&args(&["scatter", "--algo", "ring"]))
            .err()
            .unwrap();
        assert_eq!(
            refused.to_string(),
            "scatter has no algorithm ring: choose one of flat, direct"
        );
    }

    #[test]
    fn the_drawing_has_every_cell_and_message() {
        let e = explain(&args(&["all-reduce", "--algo", "ring", "-n", "3"])).unwrap();
        let svg = draw::svg(&e.table, "title").unwrap();
        assert!(svg.contains("(G₂¹ + E₂¹)/E₀¹"));
        // A line for each of the 12 messages, and a head for each.
        assert_eq!(svg.matches("<polygon").count(), 12);
    }
}
