// Proof of fifo, included at its end: of the elements, one chosen freely is followed. It comes out once, unchanged, and as many
// elements leave before it as have come before it.
logic f_started = 1'b0;
always_ff @(posedge clk_i) f_started <= 1'b1;
always_comb if (!f_started) assume (!rst_ni);

(* anyconst *) logic [7:0] f_which;
logic [7:0]       m_in, m_out;  // elements so far, modulo 256
logic             m_here;       // the chosen one is inside
logic [Width-1:0] m_value;
wire f_in  = in_valid_i && in_ready_o;
wire f_out = out_valid_o && out_ready_i;

always_ff @(posedge clk_i) begin
  if (f_in) m_in <= m_in + 8'd1;
  if (f_out) m_out <= m_out + 8'd1;
  if (f_out && m_out == f_which) m_here <= 1'b0;
  if (f_in && m_in == f_which) begin
    m_here  <= 1'b1;
    m_value <= in_i;
  end
  if (!rst_ni) begin
    m_in   <= '0;
    m_out  <= '0;
    m_here <= 1'b0;
  end
end

wire [7:0] f_held   = m_in - m_out;
assign f_held_o = f_held;
wire [7:0] f_before = f_which - m_out;  // elements before the chosen one, while it is inside
always_comb if (f_started) begin
  assert (f_held <= 8'(Depth + 1));
  if (out_valid_o) assert (f_held != '0);
  if (f_held == '0) assert (in_ready_o);
  // There is room unless Depth elements are inside.
  if (f_held < 8'(Depth)) assert (in_ready_o);
  if (out_valid_o && m_out == f_which) assert (m_here && out_o == m_value);
end
always_ff @(posedge clk_i) if (f_started && $past(rst_ni) && rst_ni) begin
  if ($past(out_valid_o && !out_ready_i)) assert (out_valid_o && $stable(out_o));
  // What is inside comes to the output in the next cycle.
  if ($past(f_held != '0 && !out_valid_o)) assert (out_valid_o);
end

// Invariants.
wire [AtW:0] f_stored = write_q - read_q;
always_comb if (f_started) begin
  assert (f_stored <= (AtW+1)'(Depth));
  assert (f_held == 8'(f_stored) + 8'(out_valid_o));
  assert (m_here == (f_before < f_held));
  if (m_here && !(out_valid_o && f_before == '0))
    assert (mem_q[AtW'(read_q + (AtW+1)'(f_before) - (AtW+1)'(out_valid_o))] == m_value);
end
