//! The choice of the GPU beside a NIC: a real one when there is one, else the emulated one.

use std::fmt;
use std::str::FromStr;
#[cfg(feature = "cuda")]
use std::sync::Arc;

use ringbell_cuda_kernels::cuda::CudaError;
#[cfg(feature = "cuda")]
use ringbell_cuda_kernels::cuda::{CudaConfig, CudaGpu, DmaBufMapper, FirstOf, GpuMapper};
use ringbell_cuda_kernels::{EmulatedGpu, EmulatedGpuConfig, Gpu, GpuError};

use crate::spec::SpecError;

/// Environment variable that selects the GPU for [`GpuChoice::Auto`]: `auto`, `cuda`, `cuda:N` or
/// `emulated`.
pub const GPU_VARIABLE: &str = "RINGBELL_GPU";

/// Environment variable that selects how the NIC reaches a real GPU's memory: see
/// [`GpuMemoryChoice`].
pub const GPU_MEMORY_VARIABLE: &str = "RINGBELL_GPU_MEMORY";

/// How the NIC reaches a real GPU's memory, in the form of an option. Where the selected way is
/// missing, the copy engine serves; [`Gpu::describe`] says which it is, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GpuMemoryChoice {
    /// `auto`: GDRCopy, else a dma-buf, else the copy engine.
    #[default]
    Auto,
    /// `gdrcopy`: mapped for the CPU by GDRCopy.
    GdrCopy,
    /// `dmabuf`: mapped for the CPU as a dma-buf of the driver.
    DmaBuf,
    /// `copy` (or `engine`): the copy engine, on a side stream.
    Copy,
    /// `slots`: no memory of the GPU at all. Memory allocated for the NIC is pinned memory of the
    /// host, which kernels fill and read over the bus (FpgaNIC §A.1.2, the slots of the data
    /// mover); memory of others goes by the copy engine.
    Slots,
}

impl FromStr for GpuMemoryChoice {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "auto" | "" => Ok(GpuMemoryChoice::Auto),
            "gdrcopy" => Ok(GpuMemoryChoice::GdrCopy),
            "dmabuf" => Ok(GpuMemoryChoice::DmaBuf),
            "copy" | "engine" => Ok(GpuMemoryChoice::Copy),
            "slots" => Ok(GpuMemoryChoice::Slots),
            _ => Err(SpecError::new(format!(
                "`{text}` is no way to a GPU's memory; write auto, gdrcopy, dmabuf, copy or slots"
            ))),
        }
    }
}

/// The GPU to use, in the form of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GpuChoice {
    /// The value of [`GPU_VARIABLE`]; without it GPU 0 when there is a driver, a GPU and kernels
    /// for it, else the emulated one.
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
    /// The real GPU that was selected.
    #[error("{choice} was asked for; `--gpu emulated` or {GPU_VARIABLE}=emulated needs none")]
    Cuda {
        /// The selected GPU.
        choice: GpuChoice,
        /// The driver's error.
        #[source]
        source: CudaError,
    },
    /// The variable names no GPU.
    #[error("cannot read {GPU_VARIABLE}")]
    Variable(#[source] SpecError),
}

/// A GPU, and the reason for the choice.
#[derive(Debug)]
pub struct ChosenGpu {
    /// The GPU.
    pub gpu: Gpu,
    /// The same GPU, when it is a real one.
    #[cfg(feature = "cuda")]
    pub cuda: Option<CudaGpu>,
    /// The error that prevented a real one, when the emulated one is used instead.
    pub instead_of: Option<CudaError>,
}

#[cfg(feature = "cuda")]
fn cuda(ordinal: usize) -> Result<ChosenGpu, CudaError> {
    let memory = memory_choice();
    let cuda = CudaGpu::open(CudaConfig {
        ordinal,
        mapper: mapper(memory),
        pinned: memory == GpuMemoryChoice::Slots,
        ..CudaConfig::default()
    })?;
    Ok(ChosenGpu {
        gpu: cuda.clone().into(),
        cuda: Some(cuda),
        instead_of: None,
    })
}

/// The variable's value; an unknown word is reported and ignored.
#[cfg(feature = "cuda")]
fn memory_choice() -> GpuMemoryChoice {
    let asked = std::env::var(GPU_MEMORY_VARIABLE).unwrap_or_default();
    asked.parse().unwrap_or_else(|why| {
        tracing::warn!(%why, "{GPU_MEMORY_VARIABLE}: auto is used");
        GpuMemoryChoice::Auto
    })
}

/// The mappings that may be tried, best first.
#[cfg(feature = "cuda")]
fn mapper(choice: GpuMemoryChoice) -> Option<Arc<dyn GpuMapper>> {
    use ringbell_cuda_kernels::gdrcopy::GdrMapper;
    use GpuMemoryChoice as C;
    let mut all = FirstOf::new();
    if matches!(choice, C::Copy | C::Slots) {
        return None;
    }
    if matches!(choice, C::Auto | C::GdrCopy) {
        let gdrcopy = GdrMapper::open().map_err(|why| why.to_string());
        all = all.then(
            "GDRCopy",
            gdrcopy.map(|m| Arc::new(m) as Arc<dyn GpuMapper>),
        );
    }
    if matches!(choice, C::Auto | C::DmaBuf) {
        all = all.then("a dma-buf", Ok(Arc::new(DmaBufMapper)));
    }
    Some(Arc::new(all))
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
    /// The variable's value, for [`GpuChoice::Auto`].
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

    /// Opens the GPU; `emulated` configures an emulated one.
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
    fn names_of_memory_paths_are_parsed() {
        use GpuMemoryChoice as C;
        for (text, choice) in [
            ("", C::Auto),
            ("auto", C::Auto),
            ("gdrcopy", C::GdrCopy),
            ("dmabuf", C::DmaBuf),
            ("copy", C::Copy),
            ("engine", C::Copy),
            ("slots", C::Slots),
        ] {
            assert_eq!(text.parse(), Ok(choice), "{text}");
        }
        let e = "pcie".parse::<C>().expect_err("no way").to_string();
        assert!(e.contains("gdrcopy, dmabuf, copy or slots"), "{e}");
    }

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
