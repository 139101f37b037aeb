//! [`Engine`]: an engine on the path of a socket or at a communicator, of the package's own or of the program's.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use ringbell::abi::EngineId;
use ringbell::engines::{
    checksum, hll, read_result, Direction, EngineError, EngineResult, EngineUseError, Place,
    Registry as Engines, StreamEngine,
};

use crate::failure;
use crate::operand::Registry;

/// Most bytes that wait for an engine of the program.
const WAITING: usize = 256 << 20;

/// What the NIC hands to an engine of the program: it never waits for the interpreter's lock, which
/// a thread that waits for the NIC may hold.
#[derive(Debug, Default)]
struct Passed {
    bytes: Vec<u8>,
    /// The end of a stream, and where it lies in the bytes.
    ends: Vec<usize>,
}

type Queue = Arc<Mutex<Passed>>;

fn locked(queue: &Queue) -> MutexGuard<'_, Passed> {
    // Each change leaves it whole.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The NIC's side of an engine of the program.
struct Tap(Queue);

impl StreamEngine for Tap {
    fn name(&self) -> &'static str {
        "python"
    }

    fn declared_rate(&self) -> f64 {
        1e9
    }

    fn is_tap(&self) -> bool {
        true
    }

    fn output_bound(&self, _input: usize) -> usize {
        0
    }

    fn process(&mut self, input: &[u8], _out: &mut Vec<u8>) {
        let mut passed = locked(&self.0);
        assert!(
            passed.bytes.len() + input.len() <= WAITING,
            "{} bytes wait for an engine in Python; call its `result` more often",
            passed.bytes.len()
        );
        passed.bytes.extend_from_slice(input);
    }

    fn finish(&mut self, _out: &mut Vec<u8>) -> Result<(), EngineError> {
        let mut passed = locked(&self.0);
        let at = passed.bytes.len();
        passed.ends.push(at);
        Ok(())
    }

    fn result(&self, _into: &mut Vec<u8>) {}

    fn reset(&mut self) {
        *locked(&self.0) = Passed::default();
    }
}

/// An engine of the program: its object, and the bytes that have passed since it was called last.
struct Own {
    object: Py<PyAny>,
    queue: Queue,
}

impl Own {
    /// Calls the object with what has passed.
    fn catch_up(&self, py: Python<'_>) -> PyResult<()> {
        let passed = std::mem::take(&mut *locked(&self.queue));
        let object = self.object.bind(py);
        let mut from = 0;
        let ends = passed.ends.iter().map(|at| (*at, true));
        for (at, is_end) in ends.chain([(passed.bytes.len(), false)]) {
            if at > from {
                let piece = PyBytes::new(py, &passed.bytes[from..at]);
                object.call_method1(intern!(py, "process"), (piece,))?;
            }
            if is_end && object.hasattr(intern!(py, "finish"))? {
                object.call_method0(intern!(py, "finish"))?;
            }
            from = at;
        }
        Ok(())
    }
}

/// What is to be attached.
pub(crate) struct Wanted {
    made: Box<dyn StreamEngine>,
    own: Option<Own>,
    name: String,
}

impl Wanted {
    /// Of a text that describes engines of the package, or of an object with `process` and
    /// `result`.
    pub(crate) fn of(engine: &Bound<'_, PyAny>) -> PyResult<Wanted> {
        let py = engine.py();
        if let Ok(spec) = engine.cast::<PyString>() {
            let name = spec.to_str()?.to_owned();
            let made = Engines::builtin().make(&name);
            let made = made.map_err(|e| failure::argument(e.to_string()))?;
            return Ok(Wanted {
                made,
                own: None,
                name,
            });
        }
        for method in [intern!(py, "process"), intern!(py, "result")] {
            if !engine.hasattr(method)? {
                return Err(PyTypeError::new_err(format!(
                    "an engine is a text such as \"hll:p=14\", or an object with `process(data)` and `result()`; this one has no `{method}`"
                )));
            }
        }
        let queue = Queue::default();
        Ok(Wanted {
            made: Box::new(Tap(queue.clone())),
            own: Some(Own {
                object: engine.clone().unbind(),
                queue,
            }),
            name: engine.get_type().name()?.to_str()?.to_owned(),
        })
    }

    /// Attaches it.
    pub(crate) fn attach(
        self,
        registry: &Arc<Registry>,
        attach: impl FnOnce(Box<dyn StreamEngine>) -> Result<EngineId, EngineUseError>,
    ) -> PyResult<Engine> {
        let id = attach(self.made).map_err(|e| failure::argument(e.to_string()))?;
        Ok(Engine {
            registry: registry.clone(),
            id,
            own: self.own,
            name: self.name,
        })
    }
}

/// A direction at a socket, by name.
pub(crate) fn direction(name: &str) -> PyResult<Direction> {
    match name {
        "received" => Ok(Direction::Receive),
        "sent" => Ok(Direction::Send),
        _ => Err(failure::argument(format!(
            "direction is {name:?}; give \"received\" or \"sent\""
        ))),
    }
}

/// A place at a communicator, by name.
pub(crate) fn place(name: &str) -> PyResult<Place> {
    match name {
        "input" => Ok(Place::Input),
        "output" => Ok(Place::Output),
        "sent" => Ok(Place::Sent),
        "received" => Ok(Place::Received),
        _ => Err(failure::argument(format!(
            "place is {name:?}; give \"input\", \"output\", \"sent\" or \"received\""
        ))),
    }
}

/// An engine that is attached. It stays so when this object is dropped.
#[pyclass(frozen, module = "ringbell")]
pub(crate) struct Engine {
    registry: Arc<Registry>,
    id: EngineId,
    own: Option<Own>,
    name: String,
}

#[pymethods]
impl Engine {
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The result so far.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let nic = self.registry.nic()?.clone();
        let result = py.detach(|| nic.engine_result(self.id));
        self.read(py, result)
    }

    /// Takes it off its path, and returns its last result.
    fn detach<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let nic = self.registry.nic()?.clone();
        let result = py.detach(|| nic.detach_engine(self.id));
        self.read(py, result)
    }

    fn __repr__(&self) -> String {
        format!("<ringbell.Engine {:?}>", self.name)
    }
}

impl Engine {
    fn read<'py>(
        &self,
        py: Python<'py>,
        result: Result<EngineResult, EngineUseError>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let result = result.map_err(|e| failure::argument(e.to_string()))?;
        if let Some(own) = &self.own {
            own.catch_up(py)?;
            return own.object.bind(py).call_method0(intern!(py, "result"));
        }
        let values = PyDict::new(py);
        values.set_item("data", PyBytes::new(py, &result.bytes))?;
        values.set_item("cut", result.cut)?;
        // A chain's result is its last engine's.
        let last = self.name.rsplit('|').next().unwrap_or_default();
        match last.split(':').next().unwrap_or_default().trim() {
            "hll" => {
                if let Some(s) = hll::HllSummary::read(&result.bytes) {
                    values.set_item("estimate", s.estimate)?;
                    values.set_item("relative_error", s.relative_error)?;
                    values.set_item("items", s.items)?;
                }
            }
            "checksum" => {
                if let Some(c) = read_result::<checksum::Checksum>(&result.bytes) {
                    values.set_item("crc32c", c.crc32c)?;
                    values.set_item("bytes", c.bytes)?;
                }
            }
            _ => {}
        }
        Ok(values.into_any())
    }
}
