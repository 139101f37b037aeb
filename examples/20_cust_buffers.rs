//! Reduce buffers of the crate `cust` among two ranks, where they are.
//!
//! A program that manages its GPU memory by `cust` keeps doing so: the NIC registers the buffers,
//! reduces in them, and gives them back. `cust` and Ringbell use the same context of the GPU, its
//! primary one, so that the pointers are valid for both.
//!
//! Run: `cargo run -p ringbell --example 20_cust_buffers --features cust`. `cust` looks for libcuda
//! when it is built and links it: the variable `CUDA_LIBRARY_PATH` names a folder whose subfolder
//! `lib64` has `libcuda.so`. Needs a GPU by CUDA.
//!
//! Prints `2 ranks, 100003 elements each, 0 wrong` and that a buffer that came back is out of the
//! NIC's reach; ends with an error otherwise.

use anyhow::{anyhow, Context as _, Error};
use cust::memory::{CopyDestination as _, DeviceBuffer};
use ringbell::abi::Status;
use ringbell::{CommOptions, Communicator, Nic, ReduceOp, Span};

const COUNT: usize = 100_003;

/// A rank's part of the sum.
fn element(rank: usize, i: usize) -> u32 {
    (i as u32).wrapping_mul(2_654_435_761) >> (rank + 1)
}

fn main() -> Result<(), Error> {
    // Kept until the end: without it the buffers' context would be gone.
    let _context = cust::quick_init().context("a context of GPU 0")?;
    let nics =
        ["10.77.120.1/24", "10.77.120.2/24"].map(|ip| Nic::builder().ip(ip).gpu("cuda").open());
    let nics: Vec<Nic> = nics.into_iter().collect::<Result<_, _>>()?;
    let comms = Communicator::init_all(&nics, &CommOptions::default())?;

    let ranks = std::thread::scope(|scope| {
        let ranks: Vec<_> = comms.iter().map(|c| scope.spawn(|| rank(c))).collect();
        let joined = ranks.into_iter().map(|r| r.join());
        joined
            .map(|r| r.map_err(|_| anyhow!("a rank has panicked"))?)
            .collect::<Result<Vec<usize>, Error>>()
    })?;
    let wrong: usize = ranks.iter().sum();
    println!("2 ranks, {COUNT} elements each, {wrong} wrong");
    match wrong {
        0 => Ok(()),
        _ => Err(anyhow!("{wrong} elements are wrong")),
    }
}

/// Reduces a buffer of `cust` with the other rank; the number of wrong elements.
fn rank(comm: &Communicator) -> Result<usize, Error> {
    // A thread's current context is its own matter.
    let _context = cust::quick_init()?;
    let nic = comm.nic();
    let cuda = nic.cuda().context("the NIC's GPU is not one by CUDA")?;
    let own: Vec<u32> = (0..COUNT)
        .map(|i| element(comm.rank() as usize, i))
        .collect();
    let buffer = DeviceBuffer::from_slice(&own)?;

    let region = nic.register_foreign(cuda.adopt_buffer(buffer)?)?;
    let (va, span) = (region.va(), Span::from(&region));
    comm.all_reduce::<u32>(span, span, COUNT as u64, ReduceOp::Sum)?;
    let adopted = region
        .into_inner()
        .context("the NIC still uses the buffer")?;

    let buffer = adopted.into_inner();
    let mut sums = vec![0; COUNT];
    buffer.copy_to(&mut sums)?;
    let other = nic.alloc::<u8>(64)?;
    let refused = nic.copy(Span::of(va, 64), &other);
    let status = refused.err().and_then(|e| e.status());
    if status != Some(Status::NotRegistered) {
        return Err(anyhow!(
            "the NIC reaches a buffer that came back: {status:?}"
        ));
    }
    let right = |i: usize| element(0, i).wrapping_add(element(1, i));
    Ok((0..COUNT).filter(|i| sums[*i] != right(*i)).count())
}
