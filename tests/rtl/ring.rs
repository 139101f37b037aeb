//! Collectives whose steps the cards' sequencers execute.

use std::sync::Arc;
use std::time::Duration;

use ringbell::comm::{CollectiveKind, CommInfo};
use ringbell::parts::nic_core::port::mem::MemSwitch;
use ringbell::parts::nic_core::port::Checksums;
use ringbell::{
    Algorithm, CommOptions, Communicator, DataType, DeviceBuffer, Nic, Operation, ReduceOp,
    UniqueId,
};

use super::{counts, noise, Folder};

fn nics(folder: &Folder, first: u8, ranks: u8, transport: &str) -> Vec<Nic> {
    let switch = MemSwitch::private(ranks.into(), 9000, Checksums::Software);
    let switch = Arc::new(switch.expect("a switch"));
    let open = |last: u8| {
        let builder = Nic::builder().nic("rtl").gpu("emulated");
        let builder = builder.gpu_memory(16 << 20).directory(&folder.0);
        let builder = match transport {
            "local" => builder,
            "rdma" => builder.port("roce:127.0.0.1:0"),
            _ => builder.switch(switch.clone(), usize::from(last - first)),
        };
        let builder = builder.transport(transport);
        let nic = builder.ip(format!("10.9.62.{last}/24")).open();
        nic.expect("a NIC")
    };
    (first..first + ranks).map(open).collect()
}

fn comms(nics: &[Nic], set: impl Fn(&mut CommOptions)) -> Vec<Communicator> {
    let mut options = CommOptions {
        timeout: Duration::from_secs(60),
        ..CommOptions::default()
    };
    set(&mut options);
    Communicator::init_all(nics, &options).expect("all ranks")
}

fn info(comm: &Communicator) -> CommInfo {
    comm.info().expect("it lives")
}

/// All-reduces the ranks' bytes; returns the results.
fn all_reduce(
    comms: &[Communicator],
    data: &[Vec<u8>],
    (dtype, op): (DataType, ReduceOp),
    (algo, in_place): (Algorithm, bool),
) -> Vec<Vec<u8>> {
    let count = data[0].len() as u64 / dtype.bytes();
    let buffers: Vec<[DeviceBuffer<u8>; 2]> = comms
        .iter()
        .zip(data)
        .map(|(comm, bytes)| {
            let both = [(); 2].map(|()| comm.nic().alloc(bytes.len() as u64).expect("room"));
            both[0].write(0, bytes).expect("inside");
            both
        })
        .collect();
    let operations: Vec<_> = comms
        .iter()
        .zip(&buffers)
        .map(|(comm, [src, dst])| {
            let dst = if in_place { src } else { dst };
            let kind = CollectiveKind::AllReduce;
            let all = Operation::by_kind(kind, dtype, op, src.into(), dst.into(), count, 0);
            (comm, all.algo(algo))
        })
        .collect();
    Communicator::group(&operations).expect("all ranks are here");
    let result = |[src, dst]: &[DeviceBuffer<u8>; 2]| {
        let dst = if in_place { src } else { dst };
        dst.to_vec().expect("a copy")
    };
    buffers.iter().map(result).collect()
}

#[test]
fn an_all_reduce_of_two_ranks_is_executed_by_the_sequencers() {
    let folder = Folder::new();
    let nics = nics(&folder, 1, 2, "local");
    let comms = comms(&nics, |_| ());
    const COUNT: u32 = 10_007;
    let values = |rank: u32| (0..COUNT).map(move |i| (i * 3 + rank) as f32);
    let bytes = |rank| values(rank).flat_map(f32::to_le_bytes).collect();
    let data: Vec<Vec<u8>> = (0..2).map(bytes).collect();
    let sum = (DataType::F32, ReduceOp::Sum);
    let results = all_reduce(&comms, &data, sum, (Algorithm::Auto, false));
    let wanted = values(0).zip(values(1)).map(|(a, b)| a + b);
    let wanted: Vec<u8> = wanted.flat_map(f32::to_le_bytes).collect();
    for (rank, nic) in nics.iter().enumerate() {
        assert!(results[rank] == wanted, "rank {rank}");
        let info = info(&comms[rank]);
        let chosen = [(CollectiveKind::AllReduce, Algorithm::Ring, 1)];
        assert_eq!((info.chosen, info.counters.card), (chosen.to_vec(), 1));
        assert_eq!(
            (info.counters.steps, info.counters.reduced),
            (3, 5_003 + u64::from(rank == 0))
        );
        let c = counts(nic);
        assert_eq!((c.programs, c.programs_in_software, c.faults), (1, 0, 0));
        // The software reduces nothing, and each rank sends two halves.
        assert_eq!((c.reductions, c.cycles.ring.steps), (0, 3));
        assert!((626..630).contains(&c.cycles.ring.beats), "{c:?}");
        // A beat a cycle at best; the two of the first half do not overlap.
        assert!((900..3_000).contains(&c.cycles.ring.cycles), "{c:?}");
    }
}

/// Rank by rank the same bits as the program in software, with any count, in place or not, in
/// several starts of the card.
#[test]
fn the_sequencers_leave_the_bits_of_the_software() {
    let folder = Folder::new();
    for (first, ranks, transport) in [(11, 4, "local"), (21, 3, "tcp"), (31, 2, "rdma")] {
        let nics = nics(&folder, first, ranks, transport);
        let small = |o: &mut CommOptions| o.settings.segment_bytes = 4 << 10;
        let on_card = comms(&nics, small);
        let in_software = comms(&nics, |o| {
            small(o);
            o.settings.card = false;
        });
        let types = [DataType::F32, DataType::F16, DataType::Bf16, DataType::I32];
        let ops = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max];
        let counts_of = [1_u64, 3, 1_000, 40_001];
        let mut operations = 0;
        for (seed, (n, dtype)) in (0..).zip(types.into_iter().enumerate()) {
            let (op, count) = (ops[n % 3], counts_of[(n + usize::from(ranks)) % 4]);
            let len = (count * dtype.bytes()) as usize;
            let data: Vec<_> = (0..u64::from(ranks))
                .map(|rank| noise(seed * 8 + rank, len))
                .collect();
            let in_place = n % 2 == 1;
            let got = all_reduce(&on_card, &data, (dtype, op), (Algorithm::Auto, in_place));
            let wanted = all_reduce(&in_software, &data, (dtype, op), (Algorithm::Ring, false));
            assert!(got == wanted, "{ranks} ranks, {count} of {dtype:?}, {op:?}");
            operations += 1;
            for (nic, (on, off)) in nics.iter().zip(on_card.iter().zip(&in_software)) {
                let cards = (info(on).counters.card, info(off).counters.card);
                assert_eq!(cards, (operations, 0));
                assert_eq!(counts(nic).programs, operations);
            }
        }
    }
}

/// All ranks use their cards, or none does.
#[test]
fn a_rank_without_its_card_is_enough_for_none() {
    let folder = Folder::new();
    let nics = nics(&folder, 41, 2, "local");
    let id = UniqueId::create().expect("an address");
    let comms: Vec<Communicator> = std::thread::scope(|s| {
        let all: Vec<_> = (0..2)
            .map(|rank| {
                let nic = &nics[rank as usize];
                s.spawn(move || {
                    let mut options = CommOptions::default();
                    options.settings.card = rank == 0;
                    Communicator::init(nic, &id, 2, rank, &options)
                })
            })
            .collect();
        let all = all.into_iter().map(|t| t.join().expect("no panic"));
        all.map(|c| c.expect("both")).collect()
    });
    let data = [1, 2].map(|seed| noise(seed, 4_000)).to_vec();
    let kind = (DataType::I32, ReduceOp::Sum);
    let got = all_reduce(&comms, &data, kind, (Algorithm::Auto, false));
    assert_eq!(got[0], got[1]);
    for (nic, comm) in nics.iter().zip(&comms) {
        let c = counts(nic);
        assert_eq!((info(comm).counters.card, c.programs), (0, 0));
        assert_ne!(info(comm).chosen[0].1, Algorithm::Ring);
    }
}

/// What the hardware does not have runs in software, in the same communicator; so does a program of
/// another shape.
#[test]
fn what_the_hardware_lacks_runs_in_software() {
    let folder = Folder::new();
    let nics = nics(&folder, 51, 2, "local");
    let comms = comms(&nics, |o| o.settings.direct = false);
    let data = [3, 4].map(|seed| noise(seed, 8_000)).to_vec();
    let lacking = [
        (DataType::F64, ReduceOp::Sum),
        (DataType::I32, ReduceOp::Prod),
        (DataType::U32, ReduceOp::Max),
    ];
    for kind in lacking {
        for algo in [Algorithm::Auto, Algorithm::Ring] {
            all_reduce(&comms, &data, kind, (algo, false));
        }
    }
    let had = (DataType::U32, ReduceOp::Sum);
    all_reduce(&comms, &data, had, (Algorithm::Pairwise, false));
    assert_eq!(counts(&nics[0]).programs, 0);
    let got = all_reduce(&comms, &data, had, (Algorithm::Auto, true));
    let word =
        |data: &[u8], i: usize| u32::from_le_bytes(data[4 * i..][..4].try_into().expect("4"));
    for i in 0..2_000 {
        let sum = word(&data[0], i).wrapping_add(word(&data[1], i));
        assert_eq!((word(&got[0], i), word(&got[1], i)), (sum, sum));
    }
    assert_eq!(counts(&nics[0]).programs, 1);
}

/// A rank that does not come, or frees its communicator in the middle, ends the operation; the
/// cards serve the next communicator.
#[test]
fn a_neighbour_that_is_missing_ends_the_operation_and_the_cards_go_on() {
    let folder = Folder::new();
    let nics = nics(&folder, 61, 3, "local");
    let sum = (DataType::F32, ReduceOp::Sum);
    let data: Vec<_> = (0..3).map(|seed| vec![seed; 400_000]).collect();
    for round in 0..3 {
        let mut comms = comms(&nics, |_| ());
        let buffer = nics[0].alloc::<f32>(100_000).expect("room");
        let all = Operation::all_reduce::<f32>(&buffer, &buffer, 100_000, ReduceOp::Sum);
        if round < 2 {
            let short = all.timeout(Duration::from_millis(400));
            let mut request = comms[0].post(&short).expect("posted");
            if round == 1 {
                // The card waits for its neighbour by now.
                while counts(&nics[0]).programs < 2 {
                    request.test().expect("under way");
                }
                drop(comms.pop());
            }
            let ended = request.wait();
            assert!(ended.is_err(), "{ended:?}");
            continue;
        }
        let got = all_reduce(&comms, &data, sum, (Algorithm::Auto, true));
        assert!(got[0] == got[1] && got[1] == got[2]);
        for comm in &comms {
            assert_eq!(info(comm).counters.card, 1);
        }
    }
    let programs = nics.iter().map(|nic| counts(nic).programs);
    assert_eq!(programs.collect::<Vec<_>>(), [3, 1, 1]);
}
