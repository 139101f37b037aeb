//! Register GPU memory, and see what registering is for.
//!
//! A kernel hands the NIC addresses of its own address space. The NIC accepts registered ones: it
//! checks region, bounds and rights, and its GTLB translates page by page (FpgaNIC §2.3.2). This
//! program registers two buffers, lets the NIC copy from one to the other, and then uses addresses
//! that are not registered, too long, or freed.
//!
//! Run: `cargo run -p ringbell --example 01_register_memory`
//!
//! Prints the keys and the translation of a buffer, `copied 3145728 bytes, 0 wrong`, and three
//! refusals with their addresses. Ends with an error when a byte is wrong or a refusal is missing.

use anyhow::{anyhow, Error};
use ringbell::abi::{GpuVa, Status};
use ringbell::{DeviceBuffer, Nic, SessionError, Span};

/// 3 MiB: one whole 2 MiB page of the GTLB, and sixteen pages of 64 KiB.
const BYTES: u32 = 3 << 20;

fn main() -> Result<(), Error> {
    let nic = Nic::builder().ip("10.77.101.1/24").open()?;
    // Allocating through the NIC is registering: pages into the GTLB, then a region with keys.
    let from = nic.alloc::<u8>(u64::from(BYTES))?;
    let to = nic.alloc::<u8>(u64::from(BYTES))?;

    let region = from.region();
    println!(
        "buffer {} + {BYTES}: {}, {}",
        from.va(),
        region.lkey,
        region.rkey
    );
    let pages = nic.gpu().page_table(from.va(), u64::from(BYTES))?.pages;
    let neighbours = pages
        .windows(2)
        .filter(|p| p[1] == p[0] + (64 << 10))
        .count();
    println!(
        "{} pages of 64 KiB; {neighbours} of them lie behind their predecessor on the bus",
        pages.len()
    );

    let data: Vec<u8> = (0..BYTES)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    from.write(0, &data)?;
    // By the NIC, within the protection domain; what a kernel does with `gpu_copy`.
    nic.copy(&from, &to)?;
    let mut seen = vec![0; BYTES as usize];
    to.read(0, &mut seen)?;
    let wrong = data.iter().zip(&seen).filter(|(a, b)| a != b).count();
    println!("copied {BYTES} bytes, {wrong} wrong");

    // The completion names the address at fault, so that a kernel's author can find the mistake.
    let past = from.va().0 + u64::from(BYTES) - 100;
    expect(
        "100 bytes past the end",
        copy(&nic, GpuVa(past), &to, 200),
        Status::OutOfBounds,
    )?;
    expect(
        "memory of the host",
        copy(&nic, GpuVa(data.as_ptr() as u64), &to, 64),
        Status::NotRegistered,
    )?;
    let freed = from.va();
    drop(from); // waits for DMA in flight, and removes the pages from the GTLB
    expect(
        "memory that was freed",
        copy(&nic, freed, &to, 64),
        Status::NotRegistered,
    )?;

    if wrong > 0 {
        return Err(anyhow!("{wrong} bytes are wrong"));
    }
    Ok(())
}

/// Copies from an address that may be wrong.
fn copy(nic: &Nic, from: GpuVa, to: &DeviceBuffer, len: u64) -> Result<(), SessionError> {
    nic.copy(Span::of(from, len), to.slice(..len))
}

fn expect(what: &str, done: Result<(), SessionError>, wanted: Status) -> Result<(), Error> {
    let Err(error) = done else {
        return Err(anyhow!("{what}: copied, but {wanted} was expected"));
    };
    println!("{what}: {error} (at {:#x})", error.detail().unwrap_or(0));
    match error.status() == Some(wanted) {
        true => Ok(()),
        false => Err(anyhow!("{what}: {error}, but {wanted} was expected")),
    }
}
