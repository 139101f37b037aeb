// Registers and doorbells of the BAR behind an AXI4-Lite slave (FpgaNIC §2.5.1, Table 3).
//
// A write that the contract allows leaves as one event, of a doorbell or of a control register, and is answered with OKAY
// after the event was taken; so no event is lost or doubled, however long its taker waits. A write or read
// of anything else, of part of a word or of an unaligned address is answered with SLVERR and does nothing. A control register's taker may
// refuse the value, which answers the write with SLVERR too; the register then keeps its old value.
//
// Status registers are written by the other blocks through a port of their own. After a reset all registers read as zero; clearing
// them takes 512 cycles, in which the bus waits. The block headers are constants, with the sizes of the parameters.
module regfile #(
  // What the headers state: queues and their most slots, connections and their operations in each direction, entries of the GTLB.
  parameter int unsigned Queues      = 16,
  parameter int unsigned Slots       = 256,
  parameter int unsigned Conns       = 64,
  parameter int unsigned Operations  = 4,
  parameter int unsigned MainEntries = 16384,
  parameter int unsigned CompEntries = 2048
) (
  input  logic        clk_i,
  input  logic        rst_ni,

  input  logic        awvalid_i,
  output logic        awready_o,
  input  logic [15:0] awaddr_i,
  input  logic        wvalid_i,
  output logic        wready_o,
  input  logic [31:0] wdata_i,
  input  logic [3:0]  wstrb_i,
  output logic        bvalid_o,
  input  logic        bready_i,
  output logic [1:0]  bresp_o,
  input  logic        arvalid_i,
  output logic        arready_o,
  input  logic [15:0] araddr_i,
  output logic        rvalid_o,
  input  logic        rready_i,
  output logic [31:0] rdata_o,
  output logic [1:0]  rresp_o,

  // A doorbell was rung.
  output logic        bell_valid_o,
  input  logic        bell_ready_i,
  output logic [8:0]  bell_queue_o,
  // A control register is written; refuse counts in the cycle of ready.
  output logic        reg_valid_o,
  input  logic        reg_ready_i,
  input  logic        reg_refuse_i,
  output logic [8:0]  reg_index_o,
  // The value, of both.
  output logic [31:0] value_o,

  // A status register's new value; index from the first status register on.
  input  logic        status_valid_i,
  input  logic [8:0]  status_index_i,
  input  logic [31:0] status_i
);
  localparam logic [1:0] Okay   = 2'b00;
  localparam logic [1:0] SlvErr = 2'b10;
  localparam int unsigned LineShift = $clog2(ringbell_abi_pkg::DOORBELL_STRIDE);

  // What an address names. Doorbells stand at the first word of their lines.
  function automatic logic is_bell(input logic [15:0] addr);
    is_bell = {16'b0, addr} >= ringbell_abi_pkg::DOORBELL_BASE && {16'b0, addr} < ringbell_abi_pkg::BAR_BYTES &&
              addr[LineShift-1:0] == '0;
  endfunction
  function automatic logic is_register(input logic [15:0] addr, input logic [1023:0] which);
    is_register = {16'b0, addr} < ringbell_abi_pkg::CONTROL_BYTES && addr[1:0] == 2'b00 && which[addr[11:2]];
  endfunction
  // Headers stand 16 words apart, from a multiple of as many bytes on as there are below the end of the control window.
  function automatic logic is_header(input logic [15:0] addr);
    is_header = {16'b0, addr} >= ringbell_abi_pkg::HEADERS_BASE && {16'b0, addr} < ringbell_abi_pkg::CONTROL_BYTES && addr[1:0] == 2'b00 &&
                32'(addr[9:6]) < ringbell_abi_pkg::BLOCK_KINDS && 32'(addr[5:2]) < ringbell_abi_pkg::HEADER_WORDS;
  endfunction
  function automatic logic [31:0] header(input logic [7:0] at);
    header = ringbell_abi_pkg::BLOCK_HEADERS[{at, 5'b0} +: 32];
    // A kind is one more than the number of its header.
    case (32'(at[7:4]) + 32'd1)
      ringbell_abi_pkg::BLOCK_QUEUES: header = sized(at[3:0], header, ringbell_abi_pkg::BLOCK_HARDWARE, Queues, Slots, 0);
      ringbell_abi_pkg::BLOCK_GTLB:   header = sized(at[3:0], header, ringbell_abi_pkg::BLOCK_HARDWARE, 1, MainEntries, CompEntries);
      ringbell_abi_pkg::BLOCK_MAILBOX: header = sized(at[3:0], header, ringbell_abi_pkg::BLOCK_HARDWARE, 1, 0, 0);
      ringbell_abi_pkg::BLOCK_ENGINES: header = sized(at[3:0], header, ringbell_abi_pkg::BLOCK_HARDWARE, 1, 0, 0);
      ringbell_abi_pkg::BLOCK_DIRECT: header = sized(at[3:0], header, ringbell_abi_pkg::BLOCK_HARDWARE, Conns, Operations, 0);
      default:                        header = sized(at[3:0], header, 0, 1, 0, 0);
    endcase
  endfunction
  // A word of a header, with flags and sizes where they stand.
  function automatic logic [31:0] sized(input logic [3:0] word, input logic [31:0] other, input logic [31:0] flags,
                                        input logic [31:0] units, input logic [31:0] size, input logic [31:0] more);
    case (32'(word))
      ringbell_abi_pkg::HEADER_FLAGS: sized = other | flags;
      ringbell_abi_pkg::HEADER_UNITS: sized = units;
      ringbell_abi_pkg::HEADER_SIZE:  sized = size;
      ringbell_abi_pkg::HEADER_MORE:  sized = more;
      default:                        sized = other;
    endcase
  endfunction
  function automatic logic [8:0] queue_of(input logic [15:0] addr);
    queue_of = 9'((addr - 16'(ringbell_abi_pkg::DOORBELL_BASE)) >> LineShift);
  endfunction

  logic [31:0] control_q [512];
  logic [31:0] status_q  [512];
  logic [31:0] bell_q    [512];
  logic        clear_q;
  logic [8:0]  clear_at_q;

  // ---------------------------------------------------------------- Writes
  logic        addr_full_q, data_full_q, bvalid_q;
  logic [15:0] addr_q;
  logic [31:0] data_q;
  logic [3:0]  strb_q;
  logic [1:0]  bresp_q;

  // Address and data of the write under way are here, and it is not answered yet.
  wire pending  = addr_full_q && data_full_q && !bvalid_q;
  wire whole    = strb_q == 4'b1111;
  wire for_bell = pending && whole && is_bell(addr_q);
  wire for_reg  = pending && whole && is_register(addr_q, ringbell_abi_pkg::REG_WRITABLE);
  wire taken    = (for_bell && bell_ready_i) || (for_reg && reg_ready_i);
  wire keep     = taken && !(for_reg && reg_refuse_i);

  assign awready_o    = !addr_full_q && !clear_q;
  assign wready_o     = !data_full_q && !clear_q;
  assign bvalid_o     = bvalid_q;
  assign bresp_o      = bresp_q;
  assign bell_valid_o = for_bell;
  assign bell_queue_o = queue_of(addr_q);
  assign reg_valid_o  = for_reg;
  assign reg_index_o  = addr_q[10:2];
  assign value_o      = data_q;

  always_ff @(posedge clk_i) begin
    if (awvalid_i && awready_o) begin
      addr_full_q <= 1'b1;
      addr_q      <= awaddr_i;
    end
    if (wvalid_i && wready_o) begin
      data_full_q <= 1'b1;
      data_q      <= wdata_i;
      strb_q      <= wstrb_i;
    end
    if (pending && (taken || !(for_bell || for_reg))) begin
      bvalid_q <= 1'b1;
      bresp_q  <= keep ? Okay : SlvErr;
    end
    if (bvalid_q && bready_i) begin
      bvalid_q    <= 1'b0;
      addr_full_q <= 1'b0;
      data_full_q <= 1'b0;
    end
    if (!rst_ni) begin
      addr_full_q <= 1'b0;
      data_full_q <= 1'b0;
      bvalid_q    <= 1'b0;
    end
  end

  // ---------------------------------------------------------------- Reads
  localparam logic [2:0] None    = 3'd0;
  localparam logic [2:0] Control = 3'd1;
  localparam logic [2:0] Status  = 3'd2;
  localparam logic [2:0] Bell    = 3'd3;
  localparam logic [2:0] Header  = 3'd4;

  logic        read_q, rvalid_q;
  logic [2:0]  kind_q;
  logic [15:0] raddr_q;
  logic [31:0] rdata_q, control_rd_q, status_rd_q, bell_rd_q;
  logic [1:0]  rresp_q;

  assign arready_o = !read_q && !rvalid_q && !clear_q;
  assign rvalid_o  = rvalid_q;
  assign rdata_o   = rdata_q;
  assign rresp_o   = rresp_q;

  always_ff @(posedge clk_i) begin
    if (arvalid_i && arready_o) begin
      read_q  <= 1'b1;
      raddr_q <= araddr_i;
      kind_q  <= None;
      if (is_bell(araddr_i)) kind_q <= Bell;
      if (is_header(araddr_i)) kind_q <= Header;
      if (is_register(araddr_i, ringbell_abi_pkg::REG_PRESENT))
        kind_q <= {16'b0, araddr_i} < ringbell_abi_pkg::STATUS_BASE ? Control : Status;
    end
    control_rd_q <= control_q[araddr_i[10:2]];
    status_rd_q  <= status_q[araddr_i[10:2]];
    bell_rd_q    <= bell_q[queue_of(araddr_i)];
    if (read_q) begin
      read_q   <= 1'b0;
      rvalid_q <= 1'b1;
      rresp_q  <= kind_q == None ? SlvErr : Okay;
      case (kind_q)
        Control: rdata_q <= control_rd_q;
        Bell:    rdata_q <= bell_rd_q;
        Header:  rdata_q <= header(raddr_q[9:2]);
        Status: case (32'(raddr_q[11:2]))
          ringbell_abi_pkg::REG_MAGIC:       rdata_q <= ringbell_abi_pkg::MAGIC;
          ringbell_abi_pkg::REG_ABI_VERSION: rdata_q <= ringbell_abi_pkg::ABI_VERSION;
          ringbell_abi_pkg::REG_BLOCKS:      rdata_q <= ringbell_abi_pkg::HEADERS_BASE;
          default:                           rdata_q <= status_rd_q;
        endcase
        default: rdata_q <= '0;
      endcase
    end
    if (rvalid_q && rready_i) rvalid_q <= 1'b0;
    if (!rst_ni) begin
      read_q   <= 1'b0;
      rvalid_q <= 1'b0;
    end
  end
  wire unused = ^{raddr_q[15:12], raddr_q[1:0]};

  // ---------------------------------------------------------------- Values
  always_ff @(posedge clk_i) begin
    if (clear_q)              control_q[clear_at_q]  <= '0;
    else if (keep && for_reg) control_q[reg_index_o] <= data_q;
    if (clear_q)               bell_q[clear_at_q]   <= '0;
    else if (keep && for_bell) bell_q[bell_queue_o] <= data_q;
    if (clear_q)             status_q[clear_at_q]     <= '0;
    else if (status_valid_i) status_q[status_index_i] <= status_i;

    clear_at_q <= clear_at_q + 9'd1;
    if (clear_at_q == 9'd511) clear_q <= 1'b0;
    if (!rst_ni) begin
      clear_q    <= 1'b1;
      clear_at_q <= '0;
    end
  end

`ifdef FORMAL
  `include "regfile_props.svh"
`endif
endmodule
