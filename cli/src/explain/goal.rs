//! The programs of a collective as a schedule in GOAL, for other simulators and our own.

use std::path::Path;

use anyhow::Result;
use ringbell::parts::onc_engines::program::{Layout, Operand, Program, Step, Target};
use ringbell_sim::goal::{Need, Op, Schedule, Work};

use crate::{files, Exit, Problem};

/// The schedule, for blocks of so many bytes.
///
/// A step's receives are there from the begin on. Behind them is a calculation of no time, which
/// also waits for that of the step before, and then come the step's sends. A message without
/// payload has a byte, as LogGOPSim knows none of zero bytes.
pub(super) fn schedule(programs: &[Program], block: u64) -> Result<Schedule> {
    if programs.iter().any(Program::is_direct) {
        let what = "the ranks of a direct program read each other's memory, and GOAL has messages";
        let advice = "give another algorithm, as --algo ring";
        return Err(Problem::new(Exit::Usage, what, advice).into());
    }
    let ranks = programs.iter().map(|p| operations(p, block)).collect();
    let schedule = Schedule::new(ranks);
    schedule.ok_or_else(|| {
        let what = "the programs name ranks that they do not have";
        Problem::new(Exit::Failed, what, "this is an error of the command").into()
    })
}

/// Writes the schedule as a file of Chakra for each rank.
pub(super) fn write_chakra(programs: &[Program], block: u64, name: &Path) -> Result<Exit> {
    let files = schedule(programs, block)?.to_chakra().map_err(|e| {
        let advice = "this is an error of the command";
        Problem::new(Exit::Failed, e.to_string(), advice)
    })?;
    for (rank, bytes) in files.iter().enumerate() {
        let mut path = name.as_os_str().to_owned();
        path.push(format!(".{rank}.et"));
        files::write(Path::new(&path), bytes, "--chakra")?;
    }
    Ok(Exit::Ok)
}

fn operations(program: &Program, block: u64) -> Vec<Op> {
    let layout = Layout {
        count: block,
        block_chunks: program.block_chunks,
    };
    let mut ops = Vec::new();
    let mut add = |work: Work, needs: &[u32]| {
        let needs = needs.iter().map(|op| Need {
            op: *op,
            begin: false,
        });
        ops.push(Op {
            label: None,
            line: 0,
            work,
            cpu: 0,
            needs: needs.collect(),
        });
        ops.len() as u32 - 1
    };
    // The calculation behind the latest step that has received something.
    let mut last: Option<u32> = None;
    for step in &program.steps {
        let bytes = bytes(step, layout);
        let from = step.operands.iter().filter_map(|o| match *o {
            Operand::Net { from, channel } => Some((from, channel)),
            _ => None,
        });
        let mut needs: Vec<u32> = from
            .map(|(from, channel)| {
                let (from, tag) = (Some(from), Some(channel.into()));
                add(Work::Recv { from, bytes, tag }, &[])
            })
            .collect();
        if !needs.is_empty() {
            needs.extend(last);
            last = Some(add(Work::Calc { ns: 0 }, &needs));
        }
        for result in &step.results {
            if let Target::Net { to, channel } = *result {
                let tag = channel.into();
                add(Work::Send { to, bytes, tag }, last.as_slice());
            }
        }
    }
    ops
}

/// Bytes of a step's value.
fn bytes(step: &Step, layout: Layout) -> u64 {
    let read = step.operands.iter().filter_map(|o| match o {
        Operand::Local(place) => Some(place),
        _ => None,
    });
    let written = step.results.iter().filter_map(|t| match t {
        Target::Local(place) => Some(place),
        _ => None,
    });
    let first = read.chain(written).next().map_or(0, |p| p.chunks().first);
    let chunks = (first..first + step.chunks).map(|i| layout.chunk(i));
    chunks.map(|c| c.end - c.start).sum::<u64>().max(1)
}

#[cfg(test)]
mod tests {
    use ringbell::abi::CollectiveKind;
    use ringbell::parts::onc_engines::program::{algorithms, generate_all};
    use ringbell_sim::{run_goal, Cluster, GoalPlan, Profile};

    use super::*;

    /// Divides by the blocks' chunks of up to 8 ranks.
    const BLOCK: u64 = 3360;

    #[test]
    fn all_programs_have_their_messages_and_bytes_and_run_to_the_end() {
        let mut seen = 0;
        for &kind in CollectiveKind::ALL {
            for algo in algorithms(kind) {
                for ranks in 2..=8 {
                    let Ok(programs) = generate_all(kind, *algo, ranks, 0) else {
                        continue;
                    };
                    if programs[0].is_direct() {
                        assert!(schedule(&programs, BLOCK).is_err());
                        continue;
                    }
                    let name = format!("{kind:?}, {algo:?}, {ranks} ranks");
                    let schedule = schedule(&programs, BLOCK).expect(&name);
                    let steps = programs.iter().flat_map(|p| &p.steps);
                    let messages = steps.map(|s| s.messages() as u64).sum();
                    let chunks: u64 = programs.iter().map(Program::sent_chunks).sum();
                    let of_block = u64::from(programs[0].block_chunks);
                    assert_eq!(BLOCK % of_block, 0, "{name}");
                    // Those of a barrier have no payload.
                    let bytes = match kind {
                        CollectiveKind::Barrier => messages,
                        _ => chunks * BLOCK / of_block,
                    };
                    assert_eq!(schedule.sent(), (messages, bytes), "{name}");
                    if !matches!(ranks, 2 | 5) {
                        continue;
                    }
                    // Read again, as the command does.
                    let text = schedule.to_string();
                    let read = Schedule::parse("a.goal", &text).expect(&name);
                    let profile = Profile::by_name("ideal").expect("it exists");
                    let cluster = Cluster::new(ranks as usize, profile);
                    let report = run_goal(&GoalPlan::new(read, cluster)).expect(&name);
                    assert_eq!((&report.trouble, report.wrong), (&None, 0), "{name}");
                    assert_eq!((report.messages, report.bytes), (messages, bytes), "{name}");
                    seen += 1;
                }
            }
        }
        assert!(seen > 30, "{seen}");
    }
}
