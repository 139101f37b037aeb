//! Sockets and memory that carry packets between the processes of this host.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd as _, BorrowedFd};

use anyhow::{Context, Result};
use ringbell::nic::TransportSpec;

/// A free port of each of so many sockets, of UDP or for this transport of TCP. All are bound
/// before the first is freed again, so that no number is given twice.
pub(crate) fn free_sockets(
    mut host: SocketAddr,
    count: u32,
    transport: TransportSpec,
) -> Result<Vec<SocketAddr>> {
    host.set_port(0);
    if transport == TransportSpec::Iwarp {
        let sockets: Vec<TcpListener> = (0..count)
            .map(|_| TcpListener::bind(host))
            .collect::<Result<_, _>>()
            .context("no free TCP port")?;
        let addresses = sockets.iter().map(TcpListener::local_addr);
        return Ok(addresses.collect::<Result<_, _>>()?);
    }
    let sockets: Vec<UdpSocket> = (0..count)
        .map(|_| UdpSocket::bind(host))
        .collect::<Result<_, _>>()
        .context("no free UDP port")?;
    let addresses = sockets.iter().map(UdpSocket::local_addr);
    Ok(addresses.collect::<Result<_, _>>()?)
}

/// The file by which ranks open memory of this process: no descriptor is inherited.
pub(super) fn path_of(fd: BorrowedFd<'_>) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd())
}
