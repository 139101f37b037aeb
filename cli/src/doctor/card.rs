//! Check of a card's doorbells: the way by which a kernel of the used GPU rings them, tried over
//! the BAR of a software NIC, because there need be no card.
#![allow(unsafe_code)] // Launches kernels.

use std::time::Duration;

use anyhow::{bail, Context, Result};
use ringbell::abi::Status;
use ringbell::gpu::GpuKind;
use ringbell::parts::card::{CardBar, Doorbells};
use ringbell::{KernelArg, Nic};

use super::check::{Check, Verdict};

const NAME: &str = "card doorbells";
/// Longest wait for the kernel.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn doorbells() -> Check {
    match try_out() {
        Ok((found, doorbells, gpu)) => {
            let why = match gpu {
                GpuKind::Emulated => "tried out with an emulated GPU and a software NIC as the card; `ringbell regs --bar ADDRESS --doorbells` asks about a real card",
                _ => "tried out with a software NIC as the card, whose BAR is memory: a driver may take a real card's BAR and refuse this one; `ringbell regs --bar ADDRESS --doorbells` asks about a real card",
            };
            Check::new(NAME, Verdict::Ok, found, doorbells.describe(), why)
        }
        Err(e) => Check::new(
            NAME,
            Verdict::Instead,
            "a kernel could not ring",
            "software NICs, which do not need this",
            format!("{e:#}"),
        ),
    }
}

/// A kernel asks a software NIC for a socket, by a doorbell in the file that holds the NIC's BAR.
fn try_out() -> Result<(String, Doorbells, GpuKind)> {
    let nic = Nic::builder().gpu_memory(2 << 20).open();
    let nic = nic.context("no NIC to try it with")?;
    let bar = nic.backend().bar_file();
    let card = CardBar::open(&bar.display().to_string()).context("its BAR cannot be mapped")?;
    let doorbells = nic.doorbells(card)?;
    let queue = nic.create_queue()?;
    let out = nic.alloc::<u8>(64)?;
    let args = [
        doorbells.handle(&queue).into(),
        KernelArg::U32(5_000_000),
        (&out).into(),
    ];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let launch = unsafe { nic.gpu().launch("rb_socket", 1, 1, &args) }?;
    launch.wait(PATIENCE)?;
    let mut status = [0];
    out.read(0, &mut status)?;
    match Status::from_code(status[0]) {
        Some(Status::Ok) => Ok((
            "a kernel rang, and its card answered".into(),
            doorbells,
            nic.gpu().kind(),
        )),
        other => bail!("the kernel's call ended with {other:?}"),
    }
}
