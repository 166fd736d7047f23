class Cmwa < Formula
  desc "{{.Description}}"
  homepage "{{.Homepage}}"
  version "{{.Version}}"
  license "Apache-2.0"
{{range $system, $name := .Systems}}
  on_{{$system}} do
{{- range $processor, $architecture := $.Processors}}
    on_{{$processor}} do
      url "{{$.Homepage}}/releases/download/v{{$.Version}}/cmwa_{{$.Version}}_{{$name}}_{{$architecture}}.tar.gz"
      sha256 "{{index $.Sums (print $name "_" $architecture)}}"
    end
{{- end}}
  end
{{end}}
  def install
    bin.install Dir["bin/*"]
    man1.install Dir["share/man/man1/*"]
    bash_completion.install Dir["share/bash-completion/completions/*"]
    zsh_completion.install Dir["share/zsh/site-functions/*"]
    fish_completion.install Dir["share/fish/vendor_completions.d/*"]
    doc.install "THIRD_PARTY_NOTICES"
  end

  test do
    assert_match "v#{version}", shell_output("#{bin}/cmwa version")
  end
end
