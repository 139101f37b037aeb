// DMA for a user that may stop at any beat, beside others of the same `dma_read` and `dma_write`: its commands leave as chunks, those of a read
// when there is room for the whole chunk, those of a write when the whole chunk is there. So no beat of it waits in what is shared.
//
// An address that faults ends it (fault_o); what has been asked for still comes. No command leaves after that, and while stop_i is set; with idle_o
// nothing is under way then, and a reset makes it ready again.
module dma_whole #(
  // Most bytes of a chunk, a multiple of 64.
  parameter int unsigned Chunk      = 4096,
  // Lines of its buffers, powers of two; at least two chunks.
  parameter int unsigned ReadLines  = 512,
  parameter int unsigned WriteLines = 256
) (
  input  logic         clk_i,
  input  logic         rst_ni,

  input  logic         stop_i,
  output logic         idle_o,
  output logic         fault_o,
  output logic [63:0]  fault_va_o,
  // All writes have been done.
  output logic         written_o,

  // The user. Lengths are not 0.
  input  logic         read_cmd_valid_i,
  output logic         read_cmd_ready_o,
  input  logic [63:0]  read_cmd_va_i,
  input  logic [31:0]  read_cmd_len_i,
  output logic         read_valid_o,
  input  logic         read_ready_i,
  output logic [511:0] read_o,
  input  logic         write_cmd_valid_i,
  output logic         write_cmd_ready_o,
  input  logic [63:0]  write_cmd_va_i,
  input  logic [31:0]  write_cmd_len_i,
  input  logic         write_valid_i,
  output logic         write_ready_o,
  input  logic [511:0] write_i,

  // The DMA. Data and reports are taken in the cycle in which they come.
  output logic         rcmd_valid_o,
  input  logic         rcmd_ready_i,
  output logic [63:0]  rcmd_va_o,
  output logic [31:0]  rcmd_len_o,
  input  logic         rdata_valid_i,
  input  logic [511:0] rdata_i,
  input  logic         rdata_last_i,
  input  logic         rdata_cut_i,
  output logic         wcmd_valid_o,
  input  logic         wcmd_ready_i,
  output logic [63:0]  wcmd_va_o,
  output logic [31:0]  wcmd_len_o,
  output logic         wdata_valid_o,
  input  logic         wdata_ready_i,
  output logic [511:0] wdata_o,
  input  logic         report_valid_i,
  input  logic         report_fault_i,
  input  logic [63:0]  report_va_i
);
  localparam int unsigned ReadW  = $clog2(ReadLines + 1);
  localparam int unsigned WriteW = $clog2(WriteLines + 2);
  wire stop = stop_i || fault_o;

  // ---------------------------------------------------------------- Reads
  logic [63:0]      rva_q;
  logic [31:0]      rleft_q;
  logic [ReadW-1:0] room_q;   // lines that no chunk has been promised
  logic [ReadW-1:0] reads_q;  // chunks that have not come
  logic             unused_room;
  wire  [31:0]      rchunk = rleft_q < 32'(Chunk) ? rleft_q : 32'(Chunk);
  wire  [31:0]      rlines = (rchunk + 32'd63) >> 6;
  wire              asks   = rcmd_valid_o && rcmd_ready_i;
  wire              comes  = rdata_valid_i && rdata_last_i;
  assign read_cmd_ready_o = rleft_q == '0;
  assign rcmd_valid_o     = rleft_q != '0 && 32'(room_q) >= rlines && !stop;
  assign rcmd_va_o        = rva_q;
  assign rcmd_len_o       = rchunk;
  fifo #(.Width(512), .Depth(ReadLines)) i_read (
    .clk_i, .rst_ni, .in_valid_i(rdata_valid_i && !rdata_cut_i), .in_ready_o(unused_room), .in_i(rdata_i),
    .out_valid_o(read_valid_o), .out_ready_i(read_ready_i), .out_o(read_o));

  always_ff @(posedge clk_i) begin
    if (read_cmd_valid_i && read_cmd_ready_o) begin
      rva_q   <= read_cmd_va_i;
      rleft_q <= read_cmd_len_i;
    end
    if (asks) begin
      rva_q   <= rva_q + 64'(rchunk);
      rleft_q <= rleft_q - rchunk;
    end
    room_q  <= room_q - (asks ? ReadW'(rlines) : '0) + ReadW'(read_valid_o && read_ready_i);
    reads_q <= reads_q + ReadW'(asks) - ReadW'(comes);
    if (!rst_ni) begin
      rleft_q <= '0;
      room_q  <= ReadW'(ReadLines);
      reads_q <= '0;
    end
  end

  // ---------------------------------------------------------------- Writes
  logic              cmd_valid;
  logic [95:0]       cmd;
  logic [63:0]       wva_q;
  logic [31:0]       wleft_q;
  logic [WriteW-1:0] have_q;    // beats of chunks that have not left
  logic [WriteW-1:0] writes_q;  // chunks without a report
  logic [2:0]        cmds_q;    // commands of which a chunk has not left
  wire  [31:0]       wchunk = wleft_q < 32'(Chunk) ? wleft_q : 32'(Chunk);
  wire  [31:0]       wlines = (wchunk + 32'd63) >> 6;
  wire               leaves = wcmd_valid_o && wcmd_ready_i;
  wire               next   = wleft_q == '0 && cmd_valid;
  wire               takes  = write_cmd_valid_i && write_cmd_ready_o;
  assign wcmd_valid_o = wleft_q != '0 && 32'(have_q) >= wlines && !stop;
  assign wcmd_va_o    = wva_q;
  assign wcmd_len_o   = wchunk;
  assign written_o    = cmds_q == '0 && writes_q == '0;
  fifo #(.Width(96), .Depth(4)) i_cmds (
    .clk_i, .rst_ni, .in_valid_i(write_cmd_valid_i), .in_ready_o(write_cmd_ready_o), .in_i({write_cmd_va_i, write_cmd_len_i}),
    .out_valid_o(cmd_valid), .out_ready_i(next), .out_o(cmd));
  fifo #(.Width(512), .Depth(WriteLines)) i_write (
    .clk_i, .rst_ni, .in_valid_i(write_valid_i), .in_ready_o(write_ready_o), .in_i(write_i),
    .out_valid_o(wdata_valid_o), .out_ready_i(wdata_ready_i), .out_o(wdata_o));

  always_ff @(posedge clk_i) begin
    if (next) {wva_q, wleft_q} <= cmd;
    if (leaves) begin
      wva_q   <= wva_q + 64'(wchunk);
      wleft_q <= wleft_q - wchunk;
    end
    have_q   <= have_q + WriteW'(write_valid_i && write_ready_o) - (leaves ? WriteW'(wlines) : '0);
    writes_q <= writes_q + WriteW'(leaves) - WriteW'(report_valid_i);
    cmds_q   <= cmds_q + 3'(takes) - 3'(leaves && wchunk == wleft_q);
    if (!rst_ni) begin
      wleft_q  <= '0;
      have_q   <= '0;
      writes_q <= '0;
      cmds_q   <= '0;
    end
  end

  // ---------------------------------------------------------------- The first fault
  wire read_fault  = rdata_valid_i && rdata_cut_i;
  wire write_fault = report_valid_i && report_fault_i;
  assign idle_o = reads_q == '0 && writes_q == '0;
  always_ff @(posedge clk_i) begin
    if (!fault_o && (read_fault || write_fault)) begin
      fault_o    <= 1'b1;
      fault_va_o <= read_fault ? rdata_i[63:0] : report_va_i;
    end
    if (!rst_ni) fault_o <= 1'b0;
  end
endmodule
