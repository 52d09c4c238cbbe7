/*
 * Reads compiled code: an ELF file with a section .text.<name> for each kernel, its parameters in .nv.info.<name>, and
 * symbols for variables. Every offset is checked against the file's size. PTX is read in cuda/code/ptx.c; choosing
 * among several images is in cuda/code/image.c.
 */
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/code/image.h"

#define INFO_PARAMETER 0x17 /* EIATTR_KPARAM_INFO */
#define INFO_SIZED 0x04     /* the form of an attribute with a length */
#define ELF_CUDA 190

struct file {
	const char *data;
	size_t size;
	Elf64_Ehdr header;
};

static const char *bytes_at(const struct file *file, uint64_t offset, uint64_t size)
{
	return offset <= file->size && size <= file->size - offset ? file->data + offset : NULL;
}

static bool section_at(const struct file *file, unsigned index, Elf64_Shdr *section)
{
	uint64_t offset = file->header.e_shoff + (uint64_t)index * sizeof *section;
	const char *at = index < file->header.e_shnum && file->header.e_shoff <= file->size
				 ? bytes_at(file, offset, sizeof *section)
				 : NULL;

	if (at)
		memcpy(section, at, sizeof *section);
	return at != NULL;
}

/* A string of a string table; it must end within the table. */
static const char *string_at(const struct file *file, unsigned table, uint32_t offset)
{
	Elf64_Shdr section;

	if (!section_at(file, table, &section) || offset >= section.sh_size)
		return NULL;
	const char *at = bytes_at(file, section.sh_offset, section.sh_size);
	return at && memchr(at + offset, 0, section.sh_size - offset) ? at + offset : NULL;
}

static void read_parameter(struct sim_kernel *kernel, const char *value)
{
	uint16_t ordinal, offset;
	uint32_t word;

	memcpy(&ordinal, value + 4, sizeof ordinal);
	memcpy(&offset, value + 6, sizeof offset);
	memcpy(&word, value + 8, sizeof word);
	if (ordinal >= SIM_MAX_PARAMETERS)
		return;
	kernel->parameters[ordinal].offset = offset;
	kernel->parameters[ordinal].size = word >> 18;
	if (kernel->parameter_count <= ordinal)
		kernel->parameter_count = ordinal + 1u;
}

/* An attribute has four bytes: form, number, and either a value or the length of the value that follows. */
static void read_info(struct sim_kernel *kernel, const char *at, size_t left)
{
	while (left >= 4) {
		uint16_t length;
		memcpy(&length, at + 2, sizeof length);
		size_t whole = 4 + ((unsigned char)at[0] == INFO_SIZED ? length : 0u);
		if (whole > left)
			return;
		if ((unsigned char)at[0] == INFO_SIZED && (unsigned char)at[1] == INFO_PARAMETER && length >= 12)
			read_parameter(kernel, at + 4);
		at += whole;
		left -= whole;
	}
}

static void read_parameter_section(const struct file *file, struct sim_kernel *kernel)
{
	Elf64_Shdr section;

	for (unsigned i = 0; section_at(file, i, &section); i++) {
		const char *name = string_at(file, file->header.e_shstrndx, section.sh_name);
		if (!name || strncmp(name, ".nv.info.", 9) != 0 || strcmp(name + 9, kernel->name) != 0)
			continue;
		const char *at = bytes_at(file, section.sh_offset, section.sh_size);
		if (at)
			read_info(kernel, at, section.sh_size);
	}
}

static bool is_variable(const Elf64_Sym *symbol)
{
	return ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT && ELF64_ST_BIND(symbol->st_info) == STB_GLOBAL;
}

static enum sim_image_status read_symbols(const struct file *file, const Elf64_Shdr *table, struct sim_image *image)
{
	Elf64_Sym symbol;

	for (uint64_t i = 0; i < table->sh_size / sizeof symbol; i++) {
		const char *at = bytes_at(file, table->sh_offset + i * sizeof symbol, sizeof symbol);
		if (!at)
			return SIM_IMAGE_INVALID;
		memcpy(&symbol, at, sizeof symbol);
		const char *name = is_variable(&symbol) ? string_at(file, table->sh_link, symbol.st_name) : NULL;
		if (name && *name && !sim_image_variable(image, name) &&
		    !sim_image_add_variable(image, name, strlen(name), symbol.st_size))
			return SIM_IMAGE_NO_MEMORY;
	}
	return SIM_IMAGE_OK;
}

static enum sim_image_status read_section(const struct file *file, const Elf64_Shdr *section, struct sim_image *image)
{
	const char *name = string_at(file, file->header.e_shstrndx, section->sh_name);

	if (section->sh_type == SHT_SYMTAB)
		return read_symbols(file, section, image);
	if (!name || strncmp(name, ".text.", 6) != 0 || !name[6] || sim_image_kernel(image, name + 6))
		return SIM_IMAGE_OK;
	struct sim_kernel *kernel = sim_image_add_kernel(image, name + 6, strlen(name + 6));
	if (!kernel)
		return SIM_IMAGE_NO_MEMORY;
	read_parameter_section(file, kernel);
	return SIM_IMAGE_OK;
}

enum sim_image_status sim_cubin_read(const char *data, size_t size, struct sim_image *image)
{
	struct file file = {.data = data, .size = size};
	enum sim_image_status status = SIM_IMAGE_OK;
	Elf64_Shdr section;

	if (size < sizeof file.header)
		return SIM_IMAGE_INVALID;
	memcpy(&file.header, data, sizeof file.header);
	if (memcmp(file.header.e_ident, ELFMAG, SELFMAG) || file.header.e_ident[EI_CLASS] != ELFCLASS64 ||
	    file.header.e_machine != ELF_CUDA)
		return SIM_IMAGE_INVALID;
	for (unsigned i = 0; status == SIM_IMAGE_OK && section_at(&file, i, &section); i++)
		status = read_section(&file, &section, image);
	return status;
}
