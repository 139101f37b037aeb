//! [`Listener`] and [`Socket`]: byte streams between arrays of this process and a peer's.
//!
//! A call runs on a thread of its own, so that Ctrl-C ends the wait. It cannot end the call itself,
//! which goes on until its deadline, so the connection is closed then: the arrays are the caller's
//! again.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use ringbell::SessionError;

use crate::engine::{direction, Engine, Wanted};
use crate::failure;
use crate::operand::{Operand, Registry};
use crate::process::Owned;
use crate::waiting::{interruptible, seconds};

/// Something that is open until it is closed.
struct Open<T> {
    inner: Mutex<Option<Arc<Owned<T>>>>,
    registry: Arc<Registry>,
}

impl<T: Send + Sync + 'static> Open<T> {
    fn new(inner: T, registry: &Arc<Registry>) -> Open<T> {
        Open {
            inner: Mutex::new(Some(Arc::new(Owned::new(inner)))),
            registry: registry.clone(),
        }
    }

    fn get(&self) -> PyResult<Arc<Owned<T>>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let inner = inner.clone();
        inner.ok_or_else(|| {
            failure::Failure::new("NOT_CONNECTED", "it is closed; open another one").raise()
        })
    }

    fn close(&self, py: Python<'_>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = inner.take();
        drop(inner);
        // Waits for what was sent.
        py.detach(|| drop(closed));
    }

    /// Runs a call that waits.
    fn call<R: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&T) -> Result<R, SessionError> + Send + 'static,
    ) -> PyResult<R> {
        let inner = self.get()?;
        inner.get()?;
        let done = interruptible(py, move || match inner.get() {
            Ok(inner) => call(inner).map_err(Some),
            // Another process: it was asked above.
            Err(_) => Err(None),
        });
        match done {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(Some(error))) => Err(failure::session(&error)),
            Ok(Err(None)) => Err(failure::argument("another process has opened it")),
            Err(signal) => {
                self.close(py);
                Err(signal)
            }
        }
    }
}

/// A port at which the NIC listens.
#[pyclass(frozen, module = "ringbell")]
pub(crate) struct Listener {
    open: Open<ringbell::Listener>,
}

impl Listener {
    pub(crate) fn listen(
        py: Python<'_>,
        registry: &Arc<Registry>,
        port: u16,
        backlog: u16,
    ) -> PyResult<Listener> {
        let nic = registry.nic()?.clone();
        let made = interruptible(py, move || nic.listen_with(port, backlog))?;
        let made = made.map_err(|e| failure::session(&e))?;
        Ok(Listener {
            open: Open::new(made, registry),
        })
    }
}

#[pymethods]
impl Listener {
    #[getter]
    fn port(&self) -> PyResult<u16> {
        Ok(self.open.get()?.get()?.port())
    }

    /// Waits for a connection.
    #[pyo3(signature = (timeout = None))]
    fn accept(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Socket> {
        if let Some(timeout) = timeout {
            self.settimeout(timeout)?;
        }
        let made = self.open.call(py, ringbell::Listener::accept)?;
        Ok(Socket {
            open: Open::new(made, &self.open.registry),
        })
    }

    fn settimeout(&self, timeout: f64) -> PyResult<()> {
        let timeout = seconds(timeout, "timeout")?;
        self.open.get()?.get()?.set_timeout(timeout);
        Ok(())
    }

    fn close(&self, py: Python<'_>) {
        self.open.close(py);
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, py: Python<'_>, _args: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}

/// A connection.
#[pyclass(frozen, module = "ringbell")]
pub(crate) struct Socket {
    open: Open<ringbell::Socket>,
}

impl Socket {
    pub(crate) fn connect(
        py: Python<'_>,
        registry: &Arc<Registry>,
        to: String,
        timeout: Option<Duration>,
    ) -> PyResult<Socket> {
        let nic = registry.nic()?.clone();
        let made = interruptible(py, move || nic.connect(to.as_str()))?;
        let made = made.map_err(|e| failure::session(&e))?;
        if let Some(timeout) = timeout {
            made.set_timeout(timeout);
        }
        Ok(Socket {
            open: Open::new(made, registry),
        })
    }

    fn operand(&self, array: &Bound<'_, PyAny>) -> PyResult<Operand> {
        let mut operand = Operand::of_bytes(array)?;
        self.open.registry.register(&mut [&mut operand])?;
        Ok(operand)
    }
}

#[pymethods]
impl Socket {
    /// Address and port of the peer.
    #[getter]
    fn peer(&self) -> PyResult<Option<(String, u16)>> {
        let peer: Option<SocketAddr> = self.open.get()?.get()?.peer();
        Ok(peer.map(|p| (p.ip().to_string(), p.port())))
    }

    /// Sends all bytes of an array.
    fn send(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let operand = self.operand(array)?;
        if operand.span().bytes() == 0 {
            return Ok(());
        }
        self.open.call(py, move |s| s.send(operand.span()))
    }

    /// Receives until the array is full or the peer has closed its side; returns the bytes.
    #[pyo3(signature = (array, timeout = None))]
    fn recv(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let timeout = timeout.map(|t| seconds(t, "timeout")).transpose()?;
        let operand = self.operand(array)?.writable()?;
        if operand.span().bytes() == 0 {
            return Ok(0);
        }
        self.open.call(py, move |s| match timeout {
            Some(timeout) => s.recv_within(operand.span(), timeout),
            None => s.recv(operand.span()),
        })
    }

    /// Receives at least one byte; returns how many, 0 when the peer has closed its side.
    #[pyo3(signature = (array, timeout = None))]
    fn recv_some(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let timeout = timeout.map(|t| seconds(t, "timeout")).transpose()?;
        let operand = self.operand(array)?.writable()?;
        if operand.span().bytes() == 0 {
            return Err(failure::argument("the array has no bytes to receive into"));
        }
        self.open.call(py, move |s| match timeout {
            Some(timeout) => s.recv_some_within(operand.span(), timeout),
            None => s.recv_some(operand.span()),
        })
    }

    /// Closes the sending side behind what was sent.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        self.open.call(py, ringbell::Socket::shutdown)
    }

    fn settimeout(&self, timeout: f64) -> PyResult<()> {
        let timeout = seconds(timeout, "timeout")?;
        self.open.get()?.get()?.set_timeout(timeout);
        Ok(())
    }

    #[pyo3(signature = (engine, direction = "received"))]
    fn attach_engine(&self, engine: &Bound<'_, PyAny>, direction: &str) -> PyResult<Engine> {
        let direction = self::direction(direction)?;
        let socket = self.open.get()?;
        let socket = socket.get()?;
        Wanted::of(engine)?.attach(&self.open.registry, |e| socket.attach_engine(direction, e))
    }

    fn close(&self, py: Python<'_>) {
        self.open.close(py);
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, py: Python<'_>, _args: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}
