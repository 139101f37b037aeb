//! How the ranks of a collective communicator meet: by the bootstrap that rank 0 serves since it
//! listens.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ringbell::job::{BootstrapError, BootstrapServer};
use ringbell::{CollectiveError, CommOptions, Communicator, UniqueId};

use crate::abi::{Code, HANDLE_BYTES};
use crate::device::Device;
use crate::failure::Failure;
use crate::group::RankGroup;
use crate::log;
use crate::settings;
use crate::wire::{named_processes, Process, RankHandle};

/// Longest time of an operation: about the most that a descriptor holds. A rank may be late as long
/// as the program wants.
const TIMEOUT: Duration = Duration::from_secs(4200);

/// A rank that waits for the others: a listening communicator of `ncclCollNet`.
#[derive(Debug)]
pub(crate) struct Meeting {
    device: Arc<Device>,
    own: RankHandle,
    /// Each rank serves a bootstrap until it learns which rank it is; that of rank 0 is used.
    server: Option<BootstrapServer>,
}

/// Where the other ranks reach this process.
fn address(device: &Device) -> IpAddr {
    let reached = device.datagrams.map(|at| at.ip());
    let reached = reached.filter(|ip| !ip.is_unspecified());
    match reached {
        Some(ip) => ip,
        // A port of frames does not say where its host is.
        None if !device.nic.ports().is_empty() => {
            settings::default_address().unwrap_or(Ipv4Addr::LOCALHOST.into())
        }
        None => Ipv4Addr::LOCALHOST.into(),
    }
}

impl Meeting {
    /// Serves a bootstrap.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Meeting, Failure> {
        let server = BootstrapServer::start(SocketAddr::new(address(device), 0), None);
        let server = server.map_err(|e| Failure::system("cannot listen for other ranks", &e))?;
        let own = RankHandle {
            nic: device.nic.ip().ip,
            datagrams: device.datagrams,
            bootstrap: server.id().address(),
            secret: *server.id().secret(),
            process: Process::own(),
        };
        Ok(Meeting {
            device: device.clone(),
            own,
            server: Some(server),
        })
    }

    /// What the other ranks must have of it.
    pub(crate) fn handle(&self) -> [u8; HANDLE_BYTES] {
        self.own.encode()
    }

    /// Makes the communicator, as one of these ranks. Waits until all have come, or the time is up.
    pub(crate) fn connect(
        &mut self,
        handles: &[[u8; HANDLE_BYTES]],
        rank: u32,
    ) -> Result<RankGroup, Failure> {
        let read = |(i, bytes)| {
            RankHandle::decode(bytes).ok_or_else(|| {
                Failure::argument(format!(
                    "the handle of rank {i} is none of this version of the plug-in; use the same one on all hosts"
                ))
            })
        };
        let all = handles.iter().enumerate().map(read);
        let all: Vec<RankHandle> = all.collect::<Result<_, _>>()?;
        let (Some(own), Some(first)) = (all.get(rank as usize), all.first()) else {
            let ranks = all.len();
            return Err(Failure::argument(format!("rank {rank} of {ranks} ranks")));
        };
        if *own != self.own {
            return Err(Failure::argument(format!(
                "the handle of rank {rank} is not of this listening communicator"
            )));
        }
        if self.server.is_none() {
            return Err(Failure::argument(
                "this listening communicator has a communicator already",
            ));
        }
        self.introduce(&all, rank as usize)?;
        if rank > 0 {
            self.server = None;
        }
        let id = UniqueId::new(first.bootstrap, first.secret);
        let options = CommOptions {
            init_timeout: self.device.timeout,
            timeout: TIMEOUT,
            ..CommOptions::default()
        };
        let ranks = all.len() as u32;
        let comm = Communicator::init(&self.device.nic, &id, ranks, rank, &options)
            .map_err(|error| refused(&error, rank, &all))?;
        log::info(&format!(
            "rank {rank} of {} of a collective communicator, over {}",
            all.len(),
            transports(&comm)
        ));
        let processes = all.into_iter().map(|h| h.process).collect();
        let server = self.server.take();
        Ok(RankGroup::new(&self.device, comm, processes, server))
    }

    /// Tells the NIC where the others receive. Refuses ranks that have one address.
    fn introduce(&self, all: &[RankHandle], own: usize) -> Result<(), Failure> {
        let mut seen = HashMap::new();
        for (rank, handle) in all.iter().enumerate() {
            if let Some(other) = seen.insert(handle.nic, rank) {
                let (a, b) = (&all[other].process, &handle.process);
                let text = match a == b {
                    true => format!("ranks {other} and {rank} are one device of {a}; a device is one rank of a communicator"),
                    false => format!("rank {other} ({a}) and rank {rank} ({b}) have drawn the NIC address {}; start one of them again", handle.nic),
                };
                return Err(Failure::new(Code::InvalidUsage, text));
            }
        }
        let Some(introductions) = &self.device.introductions else {
            return Ok(());
        };
        for (rank, handle) in all.iter().enumerate().filter(|(r, _)| *r != own) {
            let Some(at) = handle.datagrams else { continue };
            if !introductions.know(handle.nic, at) {
                let (nic, peer) = (handle.nic, &handle.process);
                let text = format!("rank {rank} ({peer}) has drawn the NIC address {nic}, which another peer has; start one of them again");
                return Err(Failure::new(Code::RemoteError, text));
            }
        }
        Ok(())
    }
}

/// What carries a communicator.
fn transports(comm: &Communicator) -> String {
    let peers = comm.info().map_or_else(|_| Vec::new(), |i| i.peers);
    let mut names: Vec<&str> = peers.iter().filter_map(|p| p.transport).collect();
    names.sort_unstable();
    names.dedup();
    match names.is_empty() {
        true => "nothing".into(),
        false => names.join(" and "),
    }
}

/// Why there is no communicator, with the processes of the ranks that it names.
fn refused(error: &CollectiveError, rank: u32, all: &[RankHandle]) -> Failure {
    use CollectiveError as E;
    let (code, named) = match error {
        E::Bootstrap(
            BootstrapError::Missing { ranks, .. } | BootstrapError::Gone { ranks, .. },
        ) => (Code::RemoteError, ranks.clone()),
        E::Bootstrap(_) => (Code::RemoteError, vec![0]),
        E::NotConnected { ranks } => {
            let ranks = ranks.iter().map(|(rank, _)| *rank);
            (Code::RemoteError, ranks.collect())
        }
        E::NoPath { a, b, .. } => (Code::RemoteError, vec![*a, *b]),
        E::Settings { rank, .. } => (Code::InvalidUsage, vec![*rank]),
        _ => (Code::SystemError, Vec::new()),
    };
    let processes: Vec<&Process> = all.iter().map(|h| &h.process).collect();
    let failure = Failure::system(&format!("rank {rank} has no communicator"), error);
    Failure {
        code,
        text: failure.text + &named_processes(&named, &processes),
    }
}
