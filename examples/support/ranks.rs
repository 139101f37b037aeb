//! The ranks of an example: NICs of one process, and a thread for each.

use anyhow::{anyhow, Error};
use ringbell::{CommOptions, Communicator, Nic};

/// Runs `work` as every rank of a communicator over a transport; `network` is the first three
/// numbers of their addresses.
pub(crate) fn run<T: Send>(
    transport: &str,
    network: &str,
    ranks: usize,
    work: impl Fn(&Communicator) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let open = |n| {
        let nic = Nic::builder()
            .ip(&*format!("{network}.{n}/24"))
            .transport(transport);
        match transport {
            "rdma" => nic.port("roce:127.0.0.1:0").open(),
            _ => nic.open(),
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
