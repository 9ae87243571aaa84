//! The papers' SSDs, by their data sheets. The sheets could not be had: figures are from memory.
//!
//! What no sheet says (dies, a die's time, the buffer) is that of the SATA data-centre drive for SATA and SAS,
//! and of the NVMe one for NVMe.

use forebay_device::model::ssd::SsdParameters;

/// HGST Ultrastar SSD800MH.B 100 GB SAS 12 Gb/s, HUSMH8010BSS200: 1,100/750 MB/s, 145K/100K random 4 KiB, the
/// figures of its series, protected from power loss.
pub fn ssd800mh_100() -> SsdParameters {
    SsdParameters {
        name: "SSD800MH.B 100 GB",
        size_bytes: 100_030_242_816,
        read_bytes_per_s: 1_100_000_000,
        write_bytes_per_s: 750_000_000,
        read_iops_max: 145_000,
        write_iops_max: 100_000,
        ..SsdParameters::sata_data_centre()
    }
}

/// Synology SNV3500-400G NVMe: 3,100/550 MB/s, 205K/40K random 4 KiB, protected from power loss.
pub fn snv3500_400() -> SsdParameters {
    SsdParameters {
        name: "SNV3500-400G",
        size_bytes: 400_088_457_216,
        dies: 32,
        read_bytes_per_s: 3_100_000_000,
        write_bytes_per_s: 550_000_000,
        read_iops_max: 205_000,
        write_iops_max: 40_000,
        ..SsdParameters::nvme_data_centre()
    }
}

/// Synology SAT5200-960G SATA: 530/500 MB/s, 98K/67K random 4 KiB, protected from power loss.
pub fn sat5200_960() -> SsdParameters {
    SsdParameters {
        name: "SAT5200-960G",
        read_bytes_per_s: 530_000_000,
        write_bytes_per_s: 500_000_000,
        read_iops_max: 98_000,
        write_iops_max: 67_000,
        ..SsdParameters::sata_data_centre()
    }
}

/// Samsung 850 PRO 512 GB SATA: 550/520 MB/s, 100K/90K random 4 KiB. A consumer's drive, which flushes to its
/// flash and slows down once it is full; the model has the former only.
pub fn samsung_850_pro_512() -> SsdParameters {
    SsdParameters {
        name: "850 PRO 512 GB",
        size_bytes: 512_110_190_592,
        read_bytes_per_s: 550_000_000,
        write_bytes_per_s: 520_000_000,
        read_iops_max: 100_000,
        write_iops_max: 90_000,
        ..SsdParameters::sata_data_centre()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_device::model::modelled::{Command, Operation, closed_loop};
    use forebay_device::model::ssd::SsdModel;
    use forebay_device::model::world::Rng;

    #[test]
    fn random_reads_reach_the_sheet_and_no_more() {
        for drive in [ssd800mh_100(), snv3500_400(), sat5200_960(), samsung_850_pro_512()] {
            let mut rng = Rng::new(1);
            let next = || Command {
                operation: Operation::Read,
                offset: rng.below(1 << 24) * 4096,
                len: 4096,
            };
            let limit = drive.read_iops_max as f64;
            let mut model = SsdModel::new(drive.clone(), 1);
            let share = closed_loop(&mut model, 256, 50_000, next).iops / limit;
            assert!((0.85..1.01).contains(&share), "{}: {share}", drive.name);
        }
    }
}
