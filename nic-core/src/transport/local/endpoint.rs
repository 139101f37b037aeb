//! The endpoint of this NIC for peers: listening socket, wake cell, and the memory that its hello
//! exports as a whole.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use ringbell_gtlb::Export;
use rustix::event::epoll;

use super::rendezvous::{self, Card, ExportInfo, LocalError, Network};
use crate::config::LocalConfig;
use crate::scratch::Held;
use crate::wake::WakeCell;

/// Key of the listening socket in the epoll set; links have their index.
pub(super) const LISTENER: u64 = u64::MAX;

/// See the module text. Dropping it takes the socket out of the directory, and the last one removes
/// the directory of a job.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) network: Network,
    pub(super) directory: PathBuf,
    /// `None` only while it is dropped.
    held: Option<Held>,
    socket_path: PathBuf,
    pub(super) listener: OwnedFd,
    /// Watches the listening socket and those of the links.
    pub(super) epoll: OwnedFd,
    pub(super) wake: Arc<WakeCell>,
    pub(super) exports: Vec<ExportInfo>,
    pub(super) export_fds: Vec<OwnedFd>,
}

impl Endpoint {
    /// Binds the address of a NIC.
    ///
    /// # Errors
    /// [`LocalError`]: the directory, an address that is taken, or too many exports.
    pub(super) fn open(
        config: &LocalConfig,
        ip: Ipv4Addr,
        exported: &[Export<'_>],
        wake: Arc<WakeCell>,
    ) -> Result<Endpoint, LocalError> {
        let system = |what: &'static str| move |source| LocalError::System { what, source };
        let mut exports = Vec::new();
        let mut export_fds = Vec::new();
        for e in exported {
            exports.push(ExportInfo {
                file_offset: e.file_offset,
                bus: e.bus,
                len: e.len,
            });
            let fd = e.fd.try_clone_to_owned();
            export_fds.push(fd.map_err(system("a copy of a memory's descriptor"))?);
        }
        if exports.len() > rendezvous::MAX_EXPORTS {
            return Err(LocalError::TooManyExports { n: exports.len() });
        }
        let (directory, held) = rendezvous::directory(config.directory.as_deref())?;
        let (listener, socket_path) = rendezvous::bind(&directory, ip)?;
        let epoll = new_epoll(&listener).map_err(system("an epoll instance"))?;
        Ok(Endpoint {
            network: Network::of(config),
            directory,
            held: Some(held),
            socket_path,
            listener,
            epoll,
            wake,
            exports,
            export_fds,
        })
    }

    /// The content of the hello.
    pub(super) fn card<'a>(
        &'a self,
        config: &'a LocalConfig,
        ip: Ipv4Addr,
        link: usize,
    ) -> Card<'a> {
        Card {
            secret: &config.secret,
            ip,
            inline_window: config.inline_window as u64,
            network: self.network,
            link,
            exports: &self.exports,
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket_path);
        if let Some(held) = self.held.take() {
            held.leave(&self.directory);
        }
    }
}

fn new_epoll(listener: &OwnedFd) -> std::io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = epoll::EventData::new_u64(LISTENER);
    epoll::add(&epoll, listener, data, epoll::EventFlags::IN)?;
    Ok(epoll)
}
