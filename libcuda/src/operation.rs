//! What a stream runs and a graph holds: a kernel with its arguments, or work of a thread of the
//! host.

use std::sync::Arc;

use ringbell_cuda_kernels::{KernelArg, LaunchError, LaunchShape, Stream};

use crate::module::{Body, Function};
use crate::{faults, lose, say, strict, Result, INVALID_VALUE, LAUNCH_FAILED, UNKNOWN};

/// A kernel with what a launch gives it.
pub(crate) struct KernelCall {
    pub(crate) function: Arc<Function>,
    pub(crate) shape: LaunchShape,
    pub(crate) args: Vec<KernelArg>,
}

/// One operation. It can run many times.
#[derive(Clone)]
pub(crate) enum Operation {
    Kernel(Arc<KernelCall>),
    /// A copy, a fill, a function of the program.
    Host {
        /// What the test double says of it, if it can run for long.
        what: Option<&'static str>,
        run: Arc<dyn Fn() + Send + Sync>,
    },
    /// One after the other.
    All(Arc<[Operation]>),
    /// A place where several come together.
    Nothing,
}

impl Operation {
    /// Short work of the driver's own.
    pub(crate) fn host(run: impl Fn() + Send + Sync + 'static) -> Operation {
        Operation::Host {
            what: None,
            run: Arc::new(run),
        }
    }

    /// Several, one after the other.
    pub(crate) fn all(each: impl Iterator<Item = Operation>) -> Operation {
        Operation::All(each.collect())
    }

    /// Puts it into the stream of a handle.
    pub(crate) fn run(&self, handle: usize, real: &Stream) -> std::result::Result<(), Result> {
        match self {
            Operation::Kernel(call) => call.launch(handle, real),
            Operation::Host { what, run } => {
                let run = run.clone();
                real.host(move || run());
                if let Some(what) = what {
                    strict::note(what, handle, real);
                }
                Ok(())
            }
            Operation::All(each) => each.iter().try_for_each(|o| o.run(handle, real)),
            Operation::Nothing => Ok(()),
        }
    }
}

impl KernelCall {
    fn launch(&self, handle: usize, real: &Stream) -> std::result::Result<(), Result> {
        let name = &self.function.name;
        if faults().kill.as_deref() == Some(&**name) {
            real.host(|| {
                lose(LAUNCH_FAILED);
            });
            return Ok(());
        }
        let launched = match &self.function.body {
            // SAFETY: the kernel's own parameters, and memory that outlives it.
            Body::Ptx(kernel) => unsafe { kernel.launch(real, self.shape, &self.args) },
            Body::Named => {
                let (grid, block) = (self.shape.grid, self.shape.block);
                // SAFETY: as above.
                unsafe { real.launch(name, grid, block, &self.args) }
            }
        };
        match launched {
            // How it ends is seen by the events behind it.
            Ok(_launch) => {}
            Err(LaunchError::Shape { .. }) => return Err(INVALID_VALUE),
            Err(e) => {
                say(&e.to_string());
                return Err(UNKNOWN);
            }
        }
        strict::note(name, handle, real);
        Ok(())
    }
}
