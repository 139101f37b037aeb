//! The GPU, its driver, and the compilers.
#![allow(unsafe_code)] // The driver is asked through its C interface.

use std::ffi::{c_char, c_int, c_uint, CStr};
use std::path::PathBuf;
use std::process::Command;

use super::{Check, Verdict};

/// What the CUDA driver says.
struct Driver {
    /// CUDA version of the driver, 1000 × major + 10 × minor.
    version: c_int,
    /// Names of the devices.
    devices: Vec<String>,
}

/// Why there is no usable driver.
enum NoDriver {
    /// libcuda is not installed.
    NotInstalled,
    /// A function of libcuda is missing.
    TooOld(&'static str),
    /// A call failed with this CUresult.
    Failed(&'static str, c_int),
}

/// Asks libcuda, loaded at run time: this program links nothing of CUDA.
fn driver() -> Result<Driver, NoDriver> {
    type Init = unsafe extern "C" fn(c_uint) -> c_int;
    type GetInt = unsafe extern "C" fn(*mut c_int) -> c_int;
    type GetDevice = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
    type GetName = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;

    fn symbol<'a, T>(
        lib: &'a libloading::Library,
        name: &'static str,
    ) -> Result<libloading::Symbol<'a, T>, NoDriver> {
        // SAFETY: each caller below names the type that the driver API documents for the symbol.
        unsafe { lib.get(name.as_bytes()) }.map_err(|_| NoDriver::TooOld(name))
    }
    fn done(name: &'static str, result: c_int) -> Result<(), NoDriver> {
        match result {
            0 => Ok(()),
            code => Err(NoDriver::Failed(name, code)),
        }
    }

    // SAFETY: libcuda's initialisers have no preconditions; it is the system's driver library.
    let lib =
        unsafe { libloading::Library::new("libcuda.so.1") }.map_err(|_| NoDriver::NotInstalled)?;
    let init = symbol::<Init>(&lib, "cuInit")?;
    let version_of = symbol::<GetInt>(&lib, "cuDriverGetVersion")?;
    let count_of = symbol::<GetInt>(&lib, "cuDeviceGetCount")?;
    let device = symbol::<GetDevice>(&lib, "cuDeviceGet")?;
    let name_of = symbol::<GetName>(&lib, "cuDeviceGetName")?;
    let (mut version, mut count) = (0, 0);
    // SAFETY: flags must be 0.
    done("cuInit", unsafe { init(0) })?;
    // SAFETY: the pointer is to a live c_int.
    done("cuDriverGetVersion", unsafe { version_of(&mut version) })?;
    // SAFETY: as above.
    done("cuDeviceGetCount", unsafe { count_of(&mut count) })?;
    let mut devices = Vec::new();
    for i in 0..count {
        let mut handle = 0;
        // SAFETY: the pointer is to a live c_int, and i is below the count.
        done("cuDeviceGet", unsafe { device(&mut handle, i) })?;
        let mut name = [0 as c_char; 128];
        // SAFETY: the buffer has the length that is given with it.
        done("cuDeviceGetName", unsafe {
            name_of(name.as_mut_ptr(), name.len() as c_int, handle)
        })?;
        name[name.len() - 1] = 0;
        // SAFETY: the last byte was just made zero.
        let text = unsafe { CStr::from_ptr(name.as_ptr()) };
        devices.push(text.to_string_lossy().into_owned());
    }
    Ok(Driver { version, devices })
}

/// The GPU that kernels run on.
pub(super) fn gpu() -> Check {
    let emulated = "emulated GPU";
    let (found, why) = match driver() {
        Ok(driver) if !driver.devices.is_empty() => {
            return Check::new(
                "GPU",
                Verdict::Instead,
                format!(
                    "{} (driver for CUDA {}.{})",
                    driver.devices.join(", "),
                    driver.version / 1000,
                    driver.version % 1000 / 10
                ),
                emulated,
                "this version drives no real GPU yet; device code is compiled for it, and runs on host threads",
            )
        }
        Ok(_) => (
            "driver, but no device".to_string(),
            "the driver sees no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES",
        ),
        Err(NoDriver::NotInstalled) => (
            "no driver (libcuda.so.1 is not there)".to_string(),
            "the same kernels, compiled by the C++ compiler, run on host threads; no GPU is needed",
        ),
        Err(NoDriver::TooOld(name)) => (
            format!("driver without {name}"),
            "the driver is too old; install a current one",
        ),
        Err(NoDriver::Failed(name, code)) => (
            format!("driver, but {name} failed with {code}"),
            "the driver does not work; nvidia-smi may say why",
        ),
    };
    Check::new("GPU", Verdict::Instead, found, emulated, why)
}

/// nvcc where it usually is: CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda; with the version it tells.
pub(super) fn find_nvcc() -> Option<(PathBuf, String)> {
    let mut places: Vec<PathBuf> = Vec::new();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(home) = std::env::var_os(variable) {
            places.push(PathBuf::from(home).join("bin/nvcc"));
        }
    }
    places.push("nvcc".into());
    places.push("/usr/local/cuda/bin/nvcc".into());
    places.into_iter().find_map(|place| {
        let version = first_line_with(&place, "release")?;
        Some((place, version))
    })
}

/// nvcc, for fat binaries.
pub(super) fn nvcc() -> Check {
    if let Some((place, version)) = find_nvcc() {
        return Check::new(
            "nvcc",
            Verdict::Ok,
            version,
            place.display().to_string(),
            "`ringbell cc` also makes fat binaries for real GPUs",
        );
    }
    Check::new(
        "nvcc",
        Verdict::Instead,
        "not on PATH, in CUDA_HOME or /usr/local/cuda",
        "C++ compiler only",
        "kernels are built for the emulated GPU; `cargo xtask kernels` brings nvcc from PyPI to check them",
    )
}

/// The compiler that builds kernels for the emulated GPU.
pub(super) fn host_compiler() -> Check {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
    match first_line_with(&PathBuf::from(&compiler), "") {
        Some(version) => Check::new(
            "C++ compiler",
            Verdict::Ok,
            version,
            compiler,
            "builds kernels for the emulated GPU, your own with `ringbell cc`",
        ),
        None => Check::new(
            "C++ compiler",
            Verdict::Instead,
            format!("{compiler} does not start"),
            "the kernels built into this program",
            "`ringbell cc` cannot build your own kernels; install g++ or set CXX",
        ),
    }
}

/// The first line that contains `word` of what `program --version` prints.
fn first_line_with(program: &PathBuf, word: &str) -> Option<String> {
    let out = Command::new(program).arg("--version").output().ok()?;
    if !out.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&out.stdout);
    let line = text.lines().find(|l| l.contains(word))?;
    Some(line.trim().to_string())
}
