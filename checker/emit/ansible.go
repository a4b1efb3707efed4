package emit

import "strings"

// ansible writes a play that installs the udev rules. The rules are an !unsafe
// string, so that nothing in them is taken for a template.
func (p *Plan) ansible() (Artefact, error) {
	rules, err := p.udev()
	if err != nil {
		return Artefact{}, err
	}
	var b strings.Builder
	b.WriteString("---\n")
	p.o.head(&b, "# ", "quirkcheck.yml", p.o.by("quirkcheck recommend --emit ansible"), "",
		"Installs "+rules.File+", which lowers queue/max_sectors_kb of disks with a known quirk",
		"when they appear. Nothing is triggered: it acts at the next boot or when a disk is",
		"plugged in. Run it with --check --diff to see what it would do. Remove: run it with",
		"-e quirkcheck_state=absent. The initramfs is rebuilt where quirkcheck_initramfs_command is set.")
	for _, r := range p.rules {
		p.o.head(&b, "# ", r.id+": "+r.title)
	}
	b.WriteString(`- name: Hold disks with a known quirk at a safe transfer size
  hosts: all
  become: true
  gather_facts: false
  vars:
    quirkcheck_state: present
    quirkcheck_rules_dir: /etc/udev/rules.d
    quirkcheck_reload_command: udevadm control --reload
    quirkcheck_initramfs_command: ""
    quirkcheck_rules: !unsafe |
`)
	for line := range strings.Lines(rules.Text) {
		if line != "\n" {
			b.WriteString("      ")
		}
		b.WriteString(line)
	}
	b.WriteString(`  tasks:
    - name: Install the udev rules
      ansible.builtin.copy:
        dest: "{{ quirkcheck_rules_dir }}/` + UdevFile + `"
        content: "{{ quirkcheck_rules }}"
        mode: "0644"
      when: quirkcheck_state == "present"
      notify:
        - Reload udev rules
        - Rebuild the initramfs
    - name: Remove the udev rules
      ansible.builtin.file:
        path: "{{ quirkcheck_rules_dir }}/` + UdevFile + `"
        state: absent
      when: quirkcheck_state == "absent"
      notify:
        - Reload udev rules
        - Rebuild the initramfs
  handlers:
    - name: Reload udev rules
      ansible.builtin.command: "{{ quirkcheck_reload_command }}"
      changed_when: true
    - name: Rebuild the initramfs
      ansible.builtin.command: "{{ quirkcheck_initramfs_command }}"
      changed_when: true
      when: quirkcheck_initramfs_command | length > 0
`)
	return Artefact{Kind: KindAnsible, File: "quirkcheck.yml", Text: b.String(), Warnings: rules.Warnings}, nil
}
