// DMA reads: a command names bytes at a virtual address, and leaves as one packed stream of 64-byte beats (FpgaNIC Table 3,
// `dma_read_cmd` and `dma_read_data`).
//
// Bursts go to the bus as `dma_split` makes them. The lines that come back, in order, are kept in a buffer that always has room for
// what was asked for. Commands overlap: the next one's bursts leave while the lines of those before arrive.
// When an address faults, the stream ends behind the whole beats before it, with a beat that keeps no byte, is marked as a cut and has
// the faulting address in its low 64 bits.
module dma_read #(
  parameter int unsigned MaxBurst = 512,
  // Lines that are buffered or under way; a power of two, above 16.
  parameter int unsigned Lines    = 512
) (
  input  logic         clk_i,
  input  logic         rst_ni,

  input  logic         cmd_valid_i,
  output logic         cmd_ready_o,
  input  logic [63:0]  cmd_va_i,
  // Not 0.
  input  logic [31:0]  cmd_len_i,

  output logic         lookup_valid_o,
  output logic [63:0]  lookup_va_o,
  input  logic         lookup_valid_i,
  input  logic         lookup_fault_i,
  input  logic [63:0]  lookup_bus_i,

  output logic         burst_valid_o,
  input  logic         burst_ready_i,
  output logic [63:0]  burst_bus_o,
  output logic [31:0]  burst_len_o,
  // The aligned lines that the bursts touch, in order. They are never held up.
  input  logic         line_valid_i,
  input  logic [511:0] line_i,

  output logic         out_valid_o,
  input  logic         out_ready_i,
  output logic [511:0] out_data_o,
  output logic [63:0]  out_keep_o,
  output logic         out_last_o,
  output logic         out_cut_o
);
  // Cuts take a place as well: at most one for each command under way.
  localparam int unsigned Commands = 32;
  localparam int unsigned Credits  = Lines - 2 * Commands;
  localparam int unsigned CountW   = $clog2(Lines + 1);

  // A command goes to both sides at once.
  logic split_ready, align_ready, align_valid, align_take;
  logic [37:0] align_cmd;
  assign cmd_ready_o = split_ready && align_ready;
  fifo #(.Width(38), .Depth(Commands)) i_commands (
    .clk_i, .rst_ni, .in_valid_i(cmd_valid_i && split_ready), .in_ready_o(align_ready),
    .in_i({cmd_va_i[5:0], cmd_len_i}), .out_valid_o(align_valid), .out_ready_i(align_take), .out_o(align_cmd));

  logic        report_valid, report_ready, report_fault, burst_last, credit;
  logic [63:0] report_va;
  dma_split #(.MaxBurst(MaxBurst), .CreditBeats(Credits)) i_split (
    .clk_i, .rst_ni, .cmd_valid_i(cmd_valid_i && align_ready), .cmd_ready_o(split_ready), .cmd_va_i, .cmd_len_i,
    .lookup_valid_o, .lookup_va_o, .lookup_valid_i, .lookup_fault_i, .lookup_bus_i,
    .burst_valid_o, .burst_ready_i, .burst_bus_o, .burst_len_o, .burst_last_o(burst_last), .credit_i(credit),
    .report_valid_o(report_valid), .report_ready_i(report_ready), .report_fault_o(report_fault), .report_va_o(report_va));

  // Lines asked for that have not come.
  logic [CountW-1:0] under_way_q;
  wire [31:0] lines = (32'(burst_bus_o[5:0]) + burst_len_o + 32'd63) >> 6;
  wire        asked = burst_valid_o && burst_ready_i;
  wire        unused = ^{burst_last, lines[31:CountW]};

  // A cut follows the lines of its command.
  logic room;
  wire  cut    = report_valid && report_fault && under_way_q == '0;
  wire  pushes = line_valid_i || cut;
  assign report_ready = !report_fault || (under_way_q == '0 && room);

  logic         data_valid, data_ready;
  logic [512:0] data;
  fifo #(.Width(513), .Depth(Lines)) i_lines (
    .clk_i, .rst_ni, .in_valid_i(pushes), .in_ready_o(room),
    .in_i(line_valid_i ? {1'b0, line_i} : {1'b1, 448'b0, report_va}),
    .out_valid_o(data_valid), .out_ready_i(data_ready), .out_o(data));
  assign credit = data_valid && data_ready && !data[512];

  dma_align i_align (
    .clk_i, .rst_ni, .cmd_valid_i(align_valid), .cmd_ready_o(align_take),
    .cmd_from_i(align_cmd[37:32]), .cmd_to_i(6'd0), .cmd_len_i(align_cmd[31:0]),
    .in_valid_i(data_valid), .in_ready_o(data_ready), .in_data_i(data[511:0]), .in_cut_i(data[512]),
    .out_valid_o, .out_ready_i, .out_data_o, .out_keep_o, .out_last_o, .out_cut_o);

  always_ff @(posedge clk_i) begin
    under_way_q <= under_way_q + (asked ? CountW'(lines) : '0) - CountW'(line_valid_i);
    if (!rst_ni) under_way_q <= '0;
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) if (rst_ni && line_valid_i) assert (room && under_way_q != '0);
`endif
endmodule
