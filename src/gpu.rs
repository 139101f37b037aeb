//! Which GPU a NIC is beside: a real one when there is one, else the emulated one.

use std::fmt;
use std::str::FromStr;

use ringbell_cuda_kernels::cuda::CudaError;
#[cfg(feature = "cuda")]
use ringbell_cuda_kernels::cuda::{CudaConfig, CudaGpu};
use ringbell_cuda_kernels::{EmulatedGpu, EmulatedGpuConfig, Gpu, GpuError};

use crate::spec::SpecError;

/// Environment variable that decides for [`GpuChoice::Auto`]: `auto`, `cuda`, `cuda:N` or `emulated`.
pub const GPU_VARIABLE: &str = "RINGBELL_GPU";

/// Environment variable that says how the NIC reaches a real GPU's memory: `engine` (the default), the GPU's
/// copy engine, or `gdrcopy`, mappings for the CPU. Stores through a mapping are short cuts for small
/// messages, but loads wait for the GPU, line by line, so that what is sent from a mapping is slow; until both
/// were measured on a real GPU, a mapping is made only when it is asked for.
pub const GPU_MEMORY_VARIABLE: &str = "RINGBELL_GPU_MEMORY";

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
    /// The same, when it is a real one.
    #[cfg(feature = "cuda")]
    pub cuda: Option<CudaGpu>,
    /// The error on the way to a real one, when the emulated one is used instead.
    pub instead_of: Option<CudaError>,
}

#[cfg(feature = "cuda")]
fn cuda(ordinal: usize) -> Result<ChosenGpu, CudaError> {
    let cuda = CudaGpu::open(CudaConfig {
        ordinal,
        mapper: mapper(),
        ..CudaConfig::default()
    })?;
    Ok(ChosenGpu {
        gpu: cuda.clone().into(),
        cuda: Some(cuda),
        instead_of: None,
    })
}

/// GDRCopy, when it is asked for and there. Without it the copy engine does the same.
#[cfg(feature = "cuda")]
fn mapper() -> Option<std::sync::Arc<dyn ringbell_cuda_kernels::cuda::GpuMapper>> {
    use ringbell_cuda_kernels::gdrcopy::GdrMapper;
    let asked = std::env::var(GPU_MEMORY_VARIABLE).unwrap_or_default();
    match asked.as_str() {
        "gdrcopy" => match GdrMapper::open() {
            Ok(mapper) => return Some(std::sync::Arc::new(mapper)),
            Err(why) => tracing::warn!(%why, "no mappings of GPU memory: the copy engine moves it"),
        },
        "" | "engine" => {}
        other => tracing::warn!(
            asked = other,
            "{GPU_MEMORY_VARIABLE} is neither `engine` nor `gdrcopy`: the copy engine is used"
        ),
    }
    None
}

#[cfg(not(feature = "cuda"))]
fn cuda(_ordinal: usize) -> Result<ChosenGpu, CudaError> {
    Err(CudaError::NotBuilt)
}

fn emulate(
    config: &EmulatedGpuConfig,
    instead_of: Option<CudaError>,
) -> Result<ChosenGpu, GpuOpenError> {
    Ok(ChosenGpu {
        gpu: EmulatedGpu::new(config.clone())?.into(),
        #[cfg(feature = "cuda")]
        cuda: None,
        instead_of,
    })
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
        match choice {
            GpuChoice::Emulated => emulate(emulated, None),
            GpuChoice::Cuda(n) => cuda(n).map_err(|source| GpuOpenError::Cuda { choice, source }),
            GpuChoice::Auto => cuda(0).or_else(|why| emulate(emulated, Some(why))),
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
