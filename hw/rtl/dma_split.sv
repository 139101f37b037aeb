// DMA commands into bursts: a command of up to 4 GiB - 1 bytes at a virtual address (FpgaNIC Table 3) leaves as bursts at bus
// addresses, in order, which together are exactly its bytes.
//
// A burst crosses no multiple of MaxBurst, hence no page. Each is looked up in the GTLB on its own. It leaves when the receiver
// of its data has room: credits count beats of 64 bytes, and a burst takes as many as it touches. A fault ends the command
// after the bursts before it, and is reported with its address. A command that runs past the end of the
// address space faults at its first byte. Every command ends with one report; one of no bytes at once.
module dma_split #(
  // Power of two from 64 to the page size. FpgaNIC's reads peak at 512 bytes.
  parameter int unsigned MaxBurst    = 512,
  // Beats that may be under way; at least those of a burst.
  parameter int unsigned CreditBeats = 64
) (
  input  logic        clk_i,
  input  logic        rst_ni,

  input  logic        cmd_valid_i,
  output logic        cmd_ready_o,
  input  logic [63:0] cmd_va_i,
  input  logic [31:0] cmd_len_i,

  // One look-up at a time; the answer may take any number of cycles.
  output logic        lookup_valid_o,
  output logic [63:0] lookup_va_o,
  input  logic        lookup_valid_i,
  input  logic        lookup_fault_i,
  input  logic [63:0] lookup_bus_i,

  output logic        burst_valid_o,
  input  logic        burst_ready_i,
  output logic [63:0] burst_bus_o,
  output logic [31:0] burst_len_o,
  output logic        burst_last_o,
  // A beat has left the receiver's buffer.
  input  logic        credit_i,

  output logic        report_valid_o,
  input  logic        report_ready_i,
  output logic        report_fault_o,
  output logic [63:0] report_va_o
);
  localparam int unsigned BurstW  = $clog2(MaxBurst);
  localparam int unsigned CreditW = $clog2(CreditBeats + 1);

  localparam logic [2:0] Idle   = 3'd0;
  localparam logic [2:0] Ask    = 3'd1;
  localparam logic [2:0] Wait   = 3'd2;
  localparam logic [2:0] Offer  = 3'd3;
  localparam logic [2:0] Report = 3'd4;

  logic [2:0]         state_q;
  logic [63:0]        va_q, bus_q;
  logic [31:0]        left_q;
  logic               fault_q;
  logic [CreditW-1:0] credits_q;

  // The burst ends at the command's end or at the next multiple of MaxBurst.
  wire [31:0] to_edge = 32'(MaxBurst) - 32'(va_q[BurstW-1:0]);
  wire [31:0] len     = left_q < to_edge ? left_q : to_edge;
  wire        last    = left_q <= to_edge;
  // Beats of 64 aligned bytes that it touches.
  wire [31:0] beats   = (32'(va_q[5:0]) + len + 32'd63) >> 6;
  wire        leaves  = burst_valid_o && burst_ready_i;

  wire [64:0] end_va  = {1'b0, cmd_va_i} + 65'(cmd_len_i);
  wire        wraps   = end_va[64] && end_va[63:0] != '0;

  assign cmd_ready_o    = state_q == Idle;
  assign lookup_valid_o = state_q == Ask;
  assign lookup_va_o    = va_q;
  // Credits only grow while a burst waits, so an offer stays.
  assign burst_valid_o  = state_q == Offer && 32'(credits_q) >= beats;
  assign burst_bus_o    = bus_q;
  assign burst_len_o    = len;
  assign burst_last_o   = last;
  assign report_valid_o = state_q == Report;
  assign report_fault_o = fault_q;
  assign report_va_o    = va_q;

  always_ff @(posedge clk_i) begin
    case (state_q)
      Idle: if (cmd_valid_i) begin
        va_q    <= cmd_va_i;
        left_q  <= cmd_len_i;
        fault_q <= wraps;
        state_q <= wraps || cmd_len_i == '0 ? Report : Ask;
      end
      Ask: state_q <= Wait;
      Wait: if (lookup_valid_i) begin
        bus_q   <= lookup_bus_i;
        fault_q <= lookup_fault_i;
        state_q <= lookup_fault_i ? Report : Offer;
      end
      Offer: if (leaves) begin
        va_q    <= va_q + 64'(len);
        left_q  <= left_q - len;
        state_q <= last ? Report : Ask;
      end
      default: if (report_ready_i) state_q <= Idle;
    endcase
    credits_q <= credits_q - (leaves ? CreditW'(beats) : '0) + CreditW'(credit_i);
    if (!rst_ni) begin
      state_q   <= Idle;
      credits_q <= CreditW'(CreditBeats);
    end
  end

`ifdef FORMAL
  `include "dma_split_props.svh"
`endif
endmodule
