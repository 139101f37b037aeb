// DMA writes: a command names bytes at a virtual address, which come as one packed stream of 64-byte beats (FpgaNIC Table 3,
// `dma_write_cmd` and `dma_write_data`), and leave as aligned lines with a strobe for each byte, in order.
//
// Each command ends with one report, after its last line was taken. When an address faults, the bytes before it are written and the
// others of the stream are dropped. A cut in place of a beat ends the command there.
module dma_write #(
  parameter int unsigned MaxBurst = 512
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

  input  logic         in_valid_i,
  output logic         in_ready_o,
  input  logic [511:0] in_data_i,
  input  logic         in_cut_i,

  output logic         line_valid_o,
  input  logic         line_ready_i,
  output logic [63:0]  line_addr_o,
  output logic [511:0] line_o,
  output logic [63:0]  line_strobe_o,

  output logic         report_valid_o,
  input  logic         report_ready_i,
  output logic         report_fault_o,
  output logic         report_cut_o,
  output logic [63:0]  report_va_o
);
  localparam int unsigned Commands = 4;
  localparam int unsigned Bursts   = 4;

  logic split_ready, align_ready, align_valid, align_take;
  logic [37:0] align_cmd;
  assign cmd_ready_o = split_ready && align_ready;
  fifo #(.Width(38), .Depth(Commands)) i_commands (
    .clk_i, .rst_ni, .in_valid_i(cmd_valid_i && split_ready), .in_ready_o(align_ready),
    .in_i({cmd_va_i[5:0], cmd_len_i}), .out_valid_o(align_valid), .out_ready_i(align_take), .out_o(align_cmd));

  logic        burst_valid, burst_ready, burst_last, split_report, split_taken, split_fault;
  logic [63:0] burst_bus, split_va;
  logic [31:0] burst_len;
  logic        credit;
  // A burst's lines are free again once it is queued: the queue holds bursts back, not the credits.
  dma_split #(.MaxBurst(MaxBurst), .CreditBeats(Bursts * MaxBurst / 64)) i_split (
    .clk_i, .rst_ni, .cmd_valid_i(cmd_valid_i && align_ready), .cmd_ready_o(split_ready), .cmd_va_i, .cmd_len_i,
    .lookup_valid_o, .lookup_va_o, .lookup_valid_i, .lookup_fault_i, .lookup_bus_i,
    .burst_valid_o(burst_valid), .burst_ready_i(burst_ready), .burst_bus_o(burst_bus), .burst_len_o(burst_len),
    .burst_last_o(burst_last), .credit_i(credit),
    .report_valid_o(split_report), .report_ready_i(split_taken), .report_fault_o(split_fault), .report_va_o(split_va));

  // What the split has made, in order: bursts, and the fault that ends a command.
  localparam int unsigned ItemW = 64 + 8 + 2;
  wire  [31:0]      burst_lines = (32'(burst_bus[5:0]) + burst_len + 32'd63) >> 6;
  wire              unused      = ^burst_lines[31:8];
  wire              fault_comes = split_report && split_fault;
  wire  [ItemW-1:0] item = fault_comes ? {1'b1, 1'b1, 8'd0, split_va} : {1'b0, burst_last, 8'(burst_lines), burst_bus};
  logic             item_room, item_valid, item_take;
  logic [ItemW-1:0] item_out;
  assign burst_ready = item_room;
  assign split_taken = !split_fault || item_room;
  fifo #(.Width(ItemW), .Depth(Bursts)) i_items (
    .clk_i, .rst_ni, .in_valid_i(burst_valid || fault_comes), .in_ready_o(item_room), .in_i(item),
    .out_valid_o(item_valid), .out_ready_i(item_take), .out_o(item_out));
  wire        is_fault = item_out[73];
  wire        is_last  = item_out[72];
  wire [7:0]  lines    = item_out[71:64];
  wire [63:0] address  = item_out[63:0];

  logic         data_valid, data_ready, data_last, data_cut;
  logic [511:0] data;
  logic [63:0]  keep;
  dma_align i_align (
    .clk_i, .rst_ni, .cmd_valid_i(align_valid), .cmd_ready_o(align_take),
    .cmd_from_i(6'd0), .cmd_to_i(align_cmd[37:32]), .cmd_len_i(align_cmd[31:0]),
    .in_valid_i, .in_ready_o, .in_data_i, .in_cut_i,
    .out_valid_o(data_valid), .out_ready_i(data_ready), .out_data_o(data), .out_keep_o(keep),
    .out_last_o(data_last), .out_cut_o(data_cut));

  // Lines of the command under way.
  localparam logic [1:0] Write  = 2'd0;
  localparam logic [1:0] Drop   = 2'd1;  // the stream goes on, its command has ended
  localparam logic [1:0] Skip   = 2'd2;  // the stream has ended, bursts of its command may follow
  localparam logic [1:0] Report = 2'd3;

  logic [1:0]  state_q;
  logic [7:0]  line_q;
  logic        fault_q, cut_q;
  logic [63:0] va_q;

  wire writes = state_q == Write && item_valid && !is_fault && data_valid;
  wire leaves = writes && !data_cut && line_ready_i;
  wire ends   = leaves && line_q + 8'd1 == lines;

  assign line_valid_o  = writes && !data_cut;
  assign line_addr_o   = {address[63:6], 6'd0} + {50'd0, line_q, 6'd0};
  assign line_o        = data;
  assign line_strobe_o = keep;
  assign data_ready    = (writes && (data_cut || line_ready_i)) || state_q == Drop;
  assign item_take     = ends || (state_q == Write && item_valid && is_fault) || state_q == Skip;

  assign report_valid_o = state_q == Report;
  assign report_fault_o = fault_q;
  assign report_cut_o   = cut_q;
  assign report_va_o    = va_q;

  // Credits of a burst come back one a cycle.
  logic [7:0] owed_q;
  assign credit = owed_q != '0;

  always_ff @(posedge clk_i) begin
    owed_q <= owed_q + (burst_valid && burst_ready ? 8'(burst_lines) : '0) - 8'(credit);
    case (state_q)
      Write: if (item_valid && is_fault) begin
        fault_q <= 1'b1;
        va_q    <= address;
        state_q <= Drop;
      end else if (writes && data_cut) begin
        cut_q   <= 1'b1;
        line_q  <= '0;
        state_q <= Skip;
      end else if (leaves) begin
        line_q <= ends ? '0 : line_q + 8'd1;
        if (ends && is_last) state_q <= Report;
      end
      Drop: if (data_valid && data_last) state_q <= Report;
      // The fault of a command that was cut is not reported.
      Skip: if (item_valid && is_last) state_q <= Report;
      default: if (report_ready_i) begin
        fault_q <= 1'b0;
        cut_q   <= 1'b0;
        state_q <= Write;
      end
    endcase
    if (!rst_ni) begin
      state_q <= Write;
      line_q  <= '0;
      owed_q  <= '0;
      fault_q <= 1'b0;
      cut_q   <= 1'b0;
    end
  end
endmodule
