//! `cudaDeviceProp`, whose layout CUDA 11, 12 and 13 have each their own.

use std::ffi::{c_int, c_void};

use crate::device::{attribute, count};
use crate::driver::{self, Code};
use crate::error::{call, check, INVALID_DEVICE, INVALID_VALUE};
use crate::version::{version, Version};

/// A version's structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Cuda11,
    Cuda12,
    Cuda13,
}

impl Layout {
    fn bytes(self) -> usize {
        match self {
            Layout::Cuda11 => 728,
            Layout::Cuda12 => 1032,
            Layout::Cuda13 => 1008,
        }
    }
}

/// A field that a version does not have.
const NONE: u16 = u16::MAX;

/// Fields of 32 bits: the driver's attribute (CUdevice_attribute), and offsets in the three
/// structures.
const INTS: [(c_int, [u16; 3]); 62] = [
    (12, [304, 304, 304]),   // regsPerBlock
    (10, [308, 308, 308]),   // warpSize
    (1, [320, 320, 320]),    // maxThreadsPerBlock
    (2, [324, 324, 324]),    // maxThreadsDim
    (3, [328, 328, 328]),    //
    (4, [332, 332, 332]),    //
    (5, [336, 336, 336]),    // maxGridSize
    (6, [340, 340, 340]),    //
    (7, [344, 344, 344]),    //
    (13, [348, 348, NONE]),  // clockRate
    (75, [360, 360, 360]),   // major
    (76, [364, 364, 364]),   // minor
    (15, [384, 384, NONE]),  // deviceOverlap
    (16, [388, 388, 384]),   // multiProcessorCount
    (17, [392, 392, NONE]),  // kernelExecTimeoutEnabled
    (18, [396, 396, 388]),   // integrated
    (19, [400, 400, 392]),   // canMapHostMemory
    (20, [404, 404, NONE]),  // computeMode
    (31, [576, 576, 560]),   // concurrentKernels
    (32, [580, 580, 564]),   // ECCEnabled
    (33, [584, 584, 568]),   // pciBusID
    (34, [588, 588, 572]),   // pciDeviceID
    (50, [592, 592, 576]),   // pciDomainID
    (35, [596, 596, 580]),   // tccDriver
    (40, [600, 600, 584]),   // asyncEngineCount
    (41, [604, 604, 588]),   // unifiedAddressing
    (36, [608, 608, NONE]),  // memoryClockRate
    (37, [612, 612, 592]),   // memoryBusWidth
    (38, [616, 616, 596]),   // l2CacheSize
    (108, [620, 620, 600]),  // persistingL2CacheMaxSize
    (39, [624, 624, 604]),   // maxThreadsPerMultiProcessor
    (78, [628, 628, 608]),   // streamPrioritiesSupported
    (79, [632, 632, 612]),   // globalL1CacheSupported
    (80, [636, 636, 616]),   // localL1CacheSupported
    (82, [648, 648, 632]),   // regsPerMultiprocessor
    (83, [652, 652, 636]),   // managedMemory
    (84, [656, 656, 640]),   // isMultiGpuBoard
    (85, [660, 660, 644]),   // multiGpuBoardGroupID
    (86, [664, 664, 648]),   // hostNativeAtomicSupported
    (87, [668, 668, NONE]),  // singleToDoublePrecisionPerfRatio
    (88, [672, 672, 652]),   // pageableMemoryAccess
    (89, [676, 676, 656]),   // concurrentManagedAccess
    (90, [680, 680, 660]),   // computePreemptionSupported
    (91, [684, 684, 664]),   // canUseHostPointerForRegisteredMem
    (95, [688, 688, 668]),   // cooperativeLaunch
    (96, [692, 692, NONE]),  // cooperativeMultiDeviceLaunch
    (100, [704, 704, 680]),  // pageableMemoryAccessUsesHostPageTables
    (101, [708, 708, 684]),  // directManagedMemAccessFromHost
    (106, [712, 712, 688]),  // maxBlocksPerMultiProcessor
    (109, [716, 716, 692]),  // accessPolicyMaxWindowSize
    (99, [NONE, 728, 704]),  // hostRegisterSupported
    (112, [NONE, 732, 708]), // sparseCudaArraySupported
    (113, [NONE, 736, 712]), // hostRegisterReadOnlySupported
    (114, [NONE, 740, 716]), // timelineSemaphoreInteropSupported
    (115, [NONE, 744, 720]), // memoryPoolsSupported
    (116, [NONE, 748, 724]), // gpuDirectRDMASupported
    (117, [NONE, 752, 728]), // gpuDirectRDMAFlushWritesOptions
    (118, [NONE, 756, 732]), // gpuDirectRDMAWritesOrdering
    (119, [NONE, 760, 736]), // memoryPoolSupportedHandleTypes
    (121, [NONE, 764, 740]), // deferredMappingCudaArraySupported
    (120, [NONE, 772, 748]), // clusterLaunch
    (129, [NONE, 776, 752]), // unifiedFunctionPointers
];

/// Fields of 64 bits, in the same way.
const SIZES: [(c_int, [u16; 3]); 8] = [
    (8, [296, 296, 296]),   // sharedMemPerBlock
    (11, [312, 312, 312]),  // memPitch
    (9, [352, 352, 352]),   // totalConstMem
    (14, [368, 368, 368]),  // textureAlignment
    (51, [376, 376, 376]),  // texturePitchAlignment
    (81, [640, 640, 624]),  // sharedMemPerMultiprocessor
    (97, [696, 696, 672]),  // sharedMemPerBlockOptin
    (111, [720, 720, 696]), // reservedSharedMemPerBlock
];

/// The structure, as far as the driver's attributes say it; the rest, among it all of textures and
/// surfaces, is 0.
fn properties(layout: Layout, device: c_int) -> Result<Vec<u8>, Code> {
    let mut p = vec![0; layout.bytes()];
    let (mut name, mut uuid, mut memory) = ([0; 256], [0; 16], 0);
    check(driver::device_name(name.as_mut_ptr(), 256, device))?;
    check(driver::device_uuid(&mut uuid, device))?;
    check(driver::device_memory(&mut memory, device))?;
    p[..256].copy_from_slice(&name.map(|c| c as u8));
    p[256..272].copy_from_slice(&uuid);
    p[288..296].copy_from_slice(&memory.to_le_bytes());
    let mut put = |at: [u16; 3], bytes: &[u8]| {
        let at = at[layout as usize];
        if at != NONE {
            p[usize::from(at)..][..bytes.len()].copy_from_slice(bytes);
        }
    };
    for (id, at) in INTS {
        put(at, &attribute(id, device)?.to_le_bytes());
    }
    for (id, at) in SIZES {
        let value = attribute(id, device)?.max(0) as u64;
        put(at, &value.to_le_bytes());
    }
    Ok(p)
}

fn give(to: *mut c_void, device: c_int, layout: Layout) -> Code {
    call(|| {
        if !(0..count()?).contains(&device) {
            return Err(INVALID_DEVICE);
        }
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let p = properties(layout, device)?;
        // SAFETY: the caller's structure, which has so many bytes in that version.
        unsafe { std::ptr::copy_nonoverlapping(p.as_ptr(), to.cast(), p.len()) };
        Ok(())
    })
}

/// CUDA 12's name, for its structure.
#[no_mangle]
pub extern "C" fn cudaGetDeviceProperties_v2(to: *mut c_void, device: c_int) -> Code {
    give(to, device, Layout::Cuda12)
}

/// CUDA 13's structure; in the library of CUDA 12 this name is that of CUDA 11's.
#[no_mangle]
pub extern "C" fn cudaGetDeviceProperties(to: *mut c_void, device: c_int) -> Code {
    match version() {
        Version::Twelve => give(to, device, Layout::Cuda11),
        Version::Thirteen => give(to, device, Layout::Cuda13),
    }
}
