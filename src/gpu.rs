//! Which GPU a NIC is beside: a real one when there is one, else the emulated one.

use std::fmt;
use std::str::FromStr;

use ringbell_cuda_kernels::cuda::CudaError;
use ringbell_cuda_kernels::{EmulatedGpu, EmulatedGpuConfig, Gpu, GpuError};

use crate::spec::SpecError;

/// Environment variable that decides for [`GpuChoice::Auto`]: `auto`, `cuda`, `cuda:N` or `emulated`.
pub const GPU_VARIABLE: &str = "RINGBELL_GPU";

/// Which GPU to use, as a person writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GpuChoice {
    /// What [`GPU_VARIABLE`] says; without it GPU 0 when there is a driver, a GPU and kernels for it, else
    /// the emulated one.
    #[default]
    Auto,
    /// The real GPU of this number, or an error.
    Cuda(usize),
    /// Host threads.
    Emulated,
}

impl FromStr for GpuChoice {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text.split_once(':').unwrap_or((text, "")) {
            ("auto", "") => Ok(GpuChoice::Auto),
            ("emulated", "") => Ok(GpuChoice::Emulated),
            ("cuda", "") if text == "cuda" => Ok(GpuChoice::Cuda(0)),
            ("cuda", n) if n.parse::<usize>().is_ok() => {
                Ok(GpuChoice::Cuda(n.parse().unwrap_or_default()))
            }
            _ => Err(SpecError::new(format!(
                "`{text}` is not a GPU; write auto, cuda, cuda:N or emulated"
            ))),
        }
    }
}

impl fmt::Display for GpuChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuChoice::Auto => f.write_str("auto"),
            GpuChoice::Cuda(n) => write!(f, "cuda:{n}"),
            GpuChoice::Emulated => f.write_str("emulated"),
        }
    }
}

/// Why the GPU could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuOpenError {
    /// The emulated GPU.
    #[error(transparent)]
    Emulated(#[from] GpuError),
    /// The real GPU that was asked for.
    #[error("{choice} was asked for; `--gpu emulated` or {GPU_VARIABLE}=emulated needs none")]
    Cuda {
        /// What was asked for.
        choice: GpuChoice,
        /// Why not.
        #[source]
        source: CudaError,
    },
    /// The variable names no GPU.
    #[error("cannot read {GPU_VARIABLE}")]
    Variable(#[source] SpecError),
}

/// A GPU, and why it is this one.
#[derive(Debug)]
pub struct ChosenGpu {
    /// The GPU.
    pub gpu: Gpu,
    /// The error on the way to a real one, when the emulated one is used instead.
    pub instead_of: Option<CudaError>,
}

#[cfg(feature = "cuda")]
fn cuda(ordinal: usize) -> Result<Gpu, CudaError> {
    use ringbell_cuda_kernels::cuda::{CudaConfig, CudaGpu};
    let config = CudaConfig {
        ordinal,
        ..CudaConfig::default()
    };
    Ok(CudaGpu::open(config)?.into())
}

#[cfg(not(feature = "cuda"))]
fn cuda(_ordinal: usize) -> Result<Gpu, CudaError> {
    Err(CudaError::NotBuilt)
}

impl GpuChoice {
    /// What the variable says, for [`GpuChoice::Auto`].
    ///
    /// # Errors
    /// [`GpuOpenError::Variable`].
    pub fn resolve(self) -> Result<GpuChoice, GpuOpenError> {
        match (self, std::env::var(GPU_VARIABLE)) {
            (GpuChoice::Auto, Ok(text)) if !text.is_empty() => {
                text.parse().map_err(GpuOpenError::Variable)
            }
            _ => Ok(self),
        }
    }

    /// Opens the GPU; `emulated` says how, if it is to be the emulated one.
    ///
    /// # Errors
    /// [`GpuOpenError`].
    pub fn open(self, emulated: &EmulatedGpuConfig) -> Result<ChosenGpu, GpuOpenError> {
        let choice = self.resolve()?;
        let emulate = || EmulatedGpu::new(emulated.clone()).map(Gpu::from);
        match choice {
            GpuChoice::Emulated => Ok(ChosenGpu {
                gpu: emulate()?,
                instead_of: None,
            }),
            GpuChoice::Cuda(n) => cuda(n)
                .map(|gpu| ChosenGpu {
                    gpu,
                    instead_of: None,
                })
                .map_err(|source| GpuOpenError::Cuda { choice, source }),
            GpuChoice::Auto => match cuda(0) {
                Ok(gpu) => Ok(ChosenGpu {
                    gpu,
                    instead_of: None,
                }),
                Err(why) => Ok(ChosenGpu {
                    gpu: emulate()?,
                    instead_of: Some(why),
                }),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_round_trip() {
        for text in ["auto", "cuda:0", "cuda:3", "emulated"] {
            let choice = text.parse::<GpuChoice>().map(|c| c.to_string());
            assert_eq!(choice.as_deref(), Ok(text));
        }
        assert_eq!("cuda".parse(), Ok(GpuChoice::Cuda(0)));
        for text in ["", "gpu", "cuda:", "cuda:x", "auto:1", "emulated:0"] {
            assert!(text.parse::<GpuChoice>().is_err(), "{text}");
        }
    }
}
