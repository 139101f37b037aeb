//! Kernels that wait at a communicator's queues: blocks with queues of their own, and what holds a
//! full queue.
#![allow(unsafe_code)] // Launches kernels.
#![allow(clippy::disallowed_methods)] // Tests at the edge.

use crate::{communicators, test_gpu};

use std::time::Duration;

use communicators::{each, options, queues, ranks, ranks_with, Ranks, PATIENCE};
use ringbell::abi::Status;
use ringbell::nic::QueueConfig;
use ringbell::{CommOptions, Communicator, DeviceBuffer, GpuResult, KernelArg, Operation};

const SHORT: Duration = Duration::from_millis(300);

/// Communicators of two ranks with kernels whose blocks exchange messages, over queues of `depth`
/// slots.
fn with_blocks(name: &str, depth: u32, block_queues: u32) -> (Ranks, Vec<Communicator>) {
    let shape = QueueConfig {
        depth,
        ..QueueConfig::default()
    };
    let r = ranks_with(name, 2, shape);
    let options = CommOptions {
        block_queues,
        ..options()
    };
    let comms = Communicator::init_all(&r.nics, &options).expect("all come");
    for c in &comms {
        test_gpu::load(c.nic().gpu(), "blocks");
    }
    (r, comms)
}

/// Messages that a block sends. Each takes thousands of cycles of simulated hardware.
fn rounds(comm: &Communicator) -> u32 {
    match comm.nic().backend().card_counts() {
        Some(_) => 20,
        None => 200,
    }
}

/// Lets so many blocks on each rank exchange words with their twins, and checks the words.
fn exchange(comms: &[Communicator], blocks: u32) {
    // All before the first kernel waits: the driver may load a function only when none runs.
    let buffers = each(comms, |c| {
        c.nic().gpu().find_kernel("exchange")?;
        let memory = c.nic().alloc::<u32>(u64::from(blocks) * 32)?;
        let wrong = c.nic().alloc::<u32>(1)?;
        let ends = c.nic().alloc::<GpuResult>(blocks.into())?;
        wrong.write(0, &[0])?;
        ends.write(0, &vec![GpuResult::UNWRITTEN; blocks as usize])?;
        anyhow::Ok((memory, wrong, ends))
    });
    let buffers: Vec<_> = buffers.into_iter().map(|b| b.expect("memory")).collect();
    let ends = each(comms, |c| {
        let (memory, wrong, ends) = &buffers[c.rank() as usize];
        let args: [KernelArg; 8] = [
            c.handle().into(),
            (1 - c.rank()).into(),
            rounds(c).into(),
            5_u32.into(),
            20_000_000_u32.into(),
            memory.into(),
            wrong.into(),
            ends.into(),
        ];
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let kernel = unsafe { c.nic().gpu().launch("exchange", blocks, 32, &args) };
        kernel?.wait(PATIENCE * 4)?;
        anyhow::Ok((wrong.to_vec()?, ends.to_vec()?))
    });
    for end in ends {
        let (wrong, blocks) = end.expect("the kernel ends");
        assert_eq!(wrong, [0]);
        for block in blocks {
            block.check("a block").expect("its messages came");
        }
    }
}

#[test]
fn blocks_with_queues_of_their_own_do_not_hold_each_other_up() {
    let (_r, comms) = with_blocks("blocks", 32, 8);
    for _ in 0..3 {
        exchange(&comms, 8);
    }
}

#[test]
fn blocks_take_turns_at_fewer_queues_and_have_the_communicators_without_any() {
    let (_r, comms) = with_blocks("blocks-two", 1024, 2);
    // No slot is used again: blocks that share a queue can lock each other out.
    exchange(&comms, 4);
    assert!(comms[0].handle().block_queue_count == 2 && queues(comms[0].nic()) == 3);
    let parts = each(&comms, |c| c.split(Some(0), 0).expect("both come"));
    assert_eq!(queues(comms[0].nic()), 6);
    drop((parts, comms));
    let (r, comms) = with_blocks("blocks-none", 64, 0);
    exchange(&comms, 1);
    assert_eq!(queues(&r.nics[0]), 1);
}

#[test]
fn more_queues_for_blocks_than_the_nic_has_are_refused_with_the_settings_name() {
    let r = ranks("blocks-many", 1);
    let options = CommOptions {
        block_queues: 64,
        ..options()
    };
    let e = Communicator::init_all(&r.nics, &options).expect_err("one is the communicator's");
    let why = std::error::Error::source(&e).map_or(e.to_string(), ToString::to_string);
    assert!(why.contains("`max_queues`"), "{e}: {why}");
    assert_eq!(queues(&r.nics[0]), 0);
}

#[test]
fn a_full_queue_says_which_descriptor_holds_it() {
    const DEPTH: u32 = 4;
    // `COLLECTIVE`, as registers.md has it.
    let collective = ringbell::abi::Opcode::Collective;
    let (_r, comms) = with_blocks("holder", DEPTH, 0);
    let c = &comms[0];
    let x: DeviceBuffer<u32> = c.nic().alloc(64).expect("memory");
    // The host's queue: tickets 0 to 3 wait.
    let receive = |tag| Operation::recv::<u32>(&x, 1, Some(1), Some(tag)).timeout(PATIENCE);
    let waits: Vec<_> = (0..DEPTH)
        .map(|i| c.post(&receive(i)).expect("room"))
        .collect();
    let full = c.post(&Operation::nop().timeout(SHORT));
    let full = full.expect_err("four receives wait");
    let source = std::error::Error::source(&full).expect("why").to_string();
    let name = collective.name();
    assert!(
        source.contains(&format!("ticket 0 ({name}) has not ended")),
        "{source}"
    );
    // The same, as a kernel reads it.
    let end = c.nic().alloc::<GpuResult>(1).expect("memory");
    let args: [KernelArg; 5] = [
        c.handle().into(),
        1_u32.into(),
        DEPTH.into(),
        (&x).into(),
        (&end).into(),
    ];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let kernel = unsafe { c.nic().gpu().launch("fill", 1, 32, &args) };
    kernel.expect("launched").wait(PATIENCE).expect("it ends");
    let end = end.to_vec().expect("read")[0];
    assert_eq!(end.status(), Some(Status::QueueFull));
    assert_eq!(end.detail, u64::from(collective.code()) << 32);
    let text = end.check("beyond").expect_err("full").to_string();
    let holder = format!("ticket 0 ({name}) holds the next slot");
    assert!(text.contains(&holder), "{text}");
    c.abort();
    drop(waits);
}
