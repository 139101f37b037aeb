//! The ranks of an example: NICs of one process, and a thread for each.

use anyhow::{anyhow, Error};
use ringbell::{CommOptions, Communicator, Nic, Wires};

/// Runs `work` as every rank of a communicator over a transport, or over the wires of a network
/// whose NICs forward, as `mesh:ring:4`; `network` is the first three
/// numbers of their addresses.
pub(crate) fn run<T: Send>(
    transport: &str,
    network: &str,
    ranks: usize,
    work: impl Fn(&Communicator) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let wires = match transport.strip_prefix("mesh:") {
        Some(name) => Some(Wires::in_memory(name)?),
        None => None,
    };
    let open = |n| {
        let nic = Nic::builder().ip(&*format!("{network}.{n}/24"));
        match (transport, &wires) {
            (_, Some(wires)) => nic.wires(wires, n as u32 - 1).open(),
            ("rdma", _) => nic.transport("rdma").port("roce:127.0.0.1:0").open(),
            _ => nic.transport(transport).open(),
        }
    };
    let nics: Vec<Nic> = (1..=ranks).map(open).collect::<Result<_, _>>()?;
    let comms = Communicator::init_all(&nics, &CommOptions::default())?;
    let work = &work;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = comms
            .iter()
            .map(|comm| scope.spawn(move || work(comm)))
            .collect();
        let ended = ranks.into_iter().map(|r| r.join());
        ended
            .map(|r| r.map_err(|_| anyhow!("a rank panicked"))?)
            .collect()
    })
}
